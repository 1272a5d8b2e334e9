"""Calls at their moment, to the microsecond: nanoseconds in, calls out of the event loop.

uvloop's own timers count whole milliseconds, so that streams with a token every millisecond or so
would all make theirs in the same moment. The kernel's timers are exact, and are a file for the loop
(timerfd_create(2), timerfd_settime(2); Python has them from 3.13 on).
"""

from __future__ import annotations

import ctypes
import os
import struct
import time
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

__all__ = ("Timer",)

LIBC: Final = ctypes.CDLL(None, use_errno=True)
ABSOLUTE: Final = 1
"""``TFD_TIMER_ABSTIME``."""
SECOND: Final = 1_000_000_000
SETTING: Final = struct.Struct("4l")
"""``struct itimerspec``: how often, and when first; seconds and nanoseconds of each."""


class Timer:
    """One kernel timer for all calls that are due one day."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._file = LIBC.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._file < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._order = count()
        self._set_to = 0
        loop.add_reader(self._file, self._rung)

    def at(self, nanoseconds: int, call: Callable[[], None]) -> None:
        """Call at a moment of ``CLOCK_MONOTONIC``, or soon if it has gone by."""
        heappush(self._due, (nanoseconds, next(self._order), call))
        self._set()

    def _rung(self) -> None:
        os.read(self._file, 8)
        self._set_to = 0
        while self._due and self._due[0][0] <= time.monotonic_ns():
            heappop(self._due)[2]()
        self._set()

    def _set(self) -> None:
        if not self._due or self._due[0][0] == self._set_to:
            return
        self._set_to = self._due[0][0]
        setting = SETTING.pack(0, 0, *divmod(self._set_to, SECOND))
        if LIBC.timerfd_settime(self._file, ABSOLUTE, setting, None):
            raise OSError(ctypes.get_errno(), "timerfd_settime")
