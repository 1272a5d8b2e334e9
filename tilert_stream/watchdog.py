"""Ends requests whose time has run out: one sleeping task for all of them, whatever their number.

No token and no stage moves a timer. A limit that begins to count after a look can't run out before
the shortest limit has passed, so that looking again then, or when the first of the counting ones
runs out, misses nothing and is never late. Where no request lives, the task waits for one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from anyio import Event, sleep

from .errors import Timeout
from .lifecycle import CLOCK

if TYPE_CHECKING:
    from collections.abc import Callable

    from .scope import RequestScope
    from .time_limits import TimeLimits

__all__ = ("Watchdog", "Watched")


class Watched(Protocol):
    """A running request."""

    @property
    def scope(self) -> RequestScope:
        """Where it stands."""
        ...

    def fail(self, error: Timeout, /) -> None:
        """End it; its reader is told why. Called again as long as it lives."""
        ...


class Watchdog:
    """Belongs to the event loop's thread.

    :param clock: the one that the requests' states are noted by.
    """

    def __init__(self, limits: TimeLimits, *, clock: Callable[[], float] = CLOCK) -> None:
        self._limits = limits
        self._clock = clock
        self._watched: set[Watched] = set()
        self._arrival: Event | None = None

    def add(self, request: Watched) -> None:
        """Watch over ``request``, which starts now. Sync."""
        self._watched.add(request)
        if self._arrival is not None:
            self._arrival.set()

    def discard(self, request: Watched) -> None:
        """Forget it. Sync, idempotent."""
        self._watched.discard(request)

    async def run(self) -> None:
        """Look whenever a limit may have run out, until cancelled."""
        while True:
            if not self._watched:
                self._arrival = Event()
                await self._arrival.wait()
                self._arrival = None
            await sleep(max(self._look(self._clock()) - self._clock(), 0))

    def _look(self, now: float) -> float:
        next_look = now + self._limits.shortest
        for request in tuple(self._watched):
            found = self._limits.examine(request.scope, now)
            if isinstance(found, Timeout):
                request.fail(found)  # it is watched until it ends: something may keep it from that
            else:
                next_look = min(next_look, found)
        return next_look
