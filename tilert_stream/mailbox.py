"""The hand-off from the engine's thread to a request's task: the only hop a token pays.

In: ``put`` from any thread, never blocking. Out: ``drain``, everything that is there.

Rules:

1. One wake serves everything put until the reader looks: none is sent to a reader that is awake.
2. ``Finished`` is the last item and travels with the last tokens, in the same wake.
3. ``put`` never blocks the engine. What can pile up is bounded by the request's ``max_tokens``;
   a slow reader finds more at once and writes fewer, larger chunks.
4. A reader that has left, or whose loop has ended, is told to the engine by ``put``'s result.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from anyio import move_on_after
from anyio.lowlevel import checkpoint

from .events import Finished
from .lifecycle import CLOCK
from .parking import make_parking

if TYPE_CHECKING:
    from collections.abc import Callable

    from .parking import Parking

__all__ = ("Mailbox", "MailboxStatistics")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class MailboxStatistics:
    """What has passed so far, and what lies there."""

    items: int
    wakes: int
    waiting: int
    last_put: float
    """Seconds on ``CLOCK`` at which something came last; 0 before anything has."""
    finished: bool
    """Whether the end is there; nothing more is taken then."""


class Mailbox(Generic[T]):
    """Made in the reader's event loop; one task reads, any thread puts."""

    __slots__ = (
        "_closed",
        "_count",
        "_finished",
        "_items",
        "_last_put",
        "_lock",
        "_parked",
        "_parking",
        "_wakes",
    )

    def __init__(self) -> None:
        self._items: list[T | Finished] = []
        self._lock = threading.Lock()
        self._parking = make_parking()
        self._parked = False
        self._finished = False
        self._closed = False
        self._count = 0
        self._wakes = 0
        self._last_put = 0.0

    def put(self, *items: T | Finished) -> bool:
        """Add ``items`` and wake the reader if it sleeps. From any thread; never blocks.

        Putting nothing asks only whether somebody will read.

        :returns: False if nobody will ever read them (the reader has left, the stream has
            ended, the event loop is closed): stop producing.
        """
        with self._lock:
            if self._closed or self._finished:
                return False
            if not items:
                return True
            self._items.extend(items)
            self._count += len(items)
            self._last_put = CLOCK()
            self._finished = isinstance(items[-1], Finished)
            wake, self._parked = self._parked, False
            self._wakes += wake
        if wake and not self._parking.unpark_at_once():
            self.close()
            return False
        return True

    def drain(self) -> list[T | Finished]:
        """Take everything that is there, in order; an empty list if nothing is."""
        with self._lock:
            items, self._items = self._items, []
        return items

    async def wait(self, *, until_end: bool = False) -> None:
        """Return as soon as something is there; at once after the end. Always a checkpoint.

        :param until_end: only as soon as the end is there.
        """
        slept = False
        while True:
            with self._lock:
                if self._finished or (self._items and not until_end):
                    break
                self._parked = True
            # A put that comes in here schedules a wake, which cannot run before park has yielded.
            try:
                await self._parking.park()
                slept = True
            finally:
                self._parked = False
        if not slept:
            await checkpoint()

    def call_when_ready(self, function: Callable[[object], object], argument: object) -> None:
        """``wait`` without a task: the event loop calls ``function(argument)``, once. Sync.

        It must not raise.
        """
        self._parking.park_call(function, argument)
        with self._lock:
            ready = self._finished or bool(self._items)
            self._parked = not ready
        if ready:
            self._parking.unpark()

    def call_off(self) -> None:
        """Take back ``call_when_ready``. Sync, idempotent."""
        self._parked = False
        self._parking.forget()

    async def linger(self, seconds: float) -> None:
        """Let more gather for ``seconds``, or until the stream's end is there."""
        with move_on_after(seconds):
            await checkpoint()
            if not self._finished:
                await self.wait(until_end=True)

    @property
    def awaited(self) -> bool:
        """Whether its reader has taken all that was there, and waits for more."""
        return self._parked

    def another_parking(self) -> Parking:
        """One more parking place in the reader's event loop. Sync."""
        return self._parking.another()

    def close(self) -> None:
        """Say that nobody reads any more. Idempotent."""
        with self._lock:
            self._closed = True
            self._items.clear()

    def statistics(self) -> MailboxStatistics:
        """Counters for tests, traces and gauges."""
        return MailboxStatistics(
            self._count, self._wakes, len(self._items), self._last_put, self._finished
        )
