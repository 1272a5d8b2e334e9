"""Whether this thread has any time left: its CPU time beside the clock's.

Work that can be put off for a moment is worth putting off only where there is more of it than time:
what comes together is then done together.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ("Pressure",)

WINDOW: Final = 0.05
"""Seconds over which it is looked at, at least: a few requests that come at once are no load."""
HIGH: Final = 0.9
"""Of its time that the thread works: from here on it has none left."""
LOW: Final = 0.5
"""Below this it has, again. What is done together takes less: the two must be far apart."""


class Pressure:
    """Of one thread, which is the only one to ask.

    :param clock: monotonic seconds.
    :param cpu_clock: seconds that the calling thread has worked.
    """

    __slots__ = ("_begin", "_clock", "_cpu_begin", "_cpu_clock", "_high")

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._begin = clock()
        self._cpu_begin = cpu_clock()
        self._high = False

    @property
    def was_high(self) -> bool:
        """What ``high`` has said last; costs nothing."""
        return self._high

    def high(self) -> bool:
        """Whether it was, from a moment not long before the last time that this was asked."""
        now = self._clock()
        spent = now - self._begin
        if spent >= WINDOW:
            cpu = self._cpu_clock()
            self._high = cpu - self._cpu_begin >= spent * (LOW if self._high else HIGH)
            self._begin, self._cpu_begin = now, cpu
        return self._high
