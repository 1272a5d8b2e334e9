"""When a server's garbage is looked for: not while somebody waits for a token.

In: an app's observers, once it listens. Python looks through its newest objects whenever so many
are there, which a request then waits for: a third of a millisecond on caches that others have
used, and always at the same place of it where requests are alike. Better is the moment in which a
request's calls have just left for other nodes, whose answers take long; where it makes none, its
end, since all it had to say has been sent.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tilert_stream.errors import TilertStreamError
    from tilert_stream.events import Finished
    from tilert_stream.scope import RequestScope
    from tilert_stream.telemetry.observer import Observers
    from tilert_stream.telemetry.record import RequestRecord

__all__ = ("collect_between_requests",)

DUE: Final = 700
"""New objects, more than were freed, that are looked through at such a moment: Python's own
threshold."""
OVERDUE: Final = 2000
"""So many are not left to wait for one. One request has some hundreds at a time."""
ROUNDS: Final = 10
"""More often it is not done before Python itself looks, which then goes through older objects too
(its own threshold for that), and knows when it is time for the oldest."""


def collect_between_requests(observers: Observers) -> None:
    """Leave out what is there now, and look for garbage at the better moments of requests.

    Called once a process, when all is made: looking through it again and again, for what has died
    since, holds up every stream for tens of milliseconds.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(OVERDUE, *gc.get_threshold()[1:])
    observers.add(_Collector())


class _Collector:
    def began(self, scope: RequestScope, /) -> None:
        if scope.begun is not None:
            _collect()

    def ended(self, scope: RequestScope, _outcome: Finished, /) -> None:
        # Where calls are made, the client's next request may stand at the door already.
        if scope.begun is None:
            _collect()

    def refused(self, _record: RequestRecord, _error: TilertStreamError, /) -> None:
        """Its answer is still to be sent."""


def _collect() -> None:
    new, rounds, _ = gc.get_count()
    if new >= DUE and rounds <= ROUNDS:
        gc.collect(0)
