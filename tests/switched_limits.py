"""Time limits for tests in which one request's time is to run out, and nobody else's.

A short limit is over for a request that a slow machine holds up, too. These run out only from
``count`` to ``rest``: a test lets them count when its request has come to where it is to fail, and
rest before the next one is to be served.
"""

from __future__ import annotations

from math import inf
from typing import Final

from tilert_stream.errors import Timeout
from tilert_stream.scope import RequestScope
from tilert_stream.time_limits import TimeLimits

NO_LIMITS: Final = {
    "prefill": inf,
    "kv": inf,
    "first_token": inf,
    "inter_token": inf,
    "total": inf,
}


class SwitchedLimits(TimeLimits):
    """These limits in seconds, and no other. They rest at first."""

    _switch: list[bool]

    def __init__(self, **limits: float) -> None:
        super().__init__(**(NO_LIMITS | limits))
        vars(self)["_switch"] = [False]

    def count(self) -> None:
        """Let what has run out, or will, end its request."""
        self._switch[0] = True

    def rest(self) -> None:
        """End nobody from now on."""
        self._switch[0] = False

    def examine(self, scope: RequestScope, now: float) -> Timeout | float:
        """As for any limits while they count; else the time of the next look."""
        found = super().examine(scope, now)
        if isinstance(found, Timeout) and not self._switch[0]:
            return now + self.shortest
        return found
