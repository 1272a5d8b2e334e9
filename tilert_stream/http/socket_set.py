"""The sockets of one event loop that somebody wants to read, and whom to call for each.

All are in one set of the kernel's (``epoll``), which is itself what the event loop waits for: one
wake of it calls whoever can read, however many they are, and to begin and to stop is one system
call each. Where an event loop has no time left, many that can be read rest for a moment: the next
look finds more in each of them, for the same work. Where it has some, whoever takes long lets
others pass.
"""

from __future__ import annotations

import asyncio
import logging
import select
import selectors
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Final
from weakref import ReferenceType, WeakKeyDictionary, ref

import anyio
import anyio.lowlevel

from .pressure import Pressure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ("EVENTS", "SelectorSet", "SocketSet", "new_set", "sets_of_loops", "socket_set")

logger = logging.getLogger(__name__)

EVENTS: Final = 256
"""So many sockets are looked after in one turn of the loop: others have a right to it, too."""
CROWD: Final = 3
"""So many sockets that can be read at once are worth a rest."""
REST: Final = 0.001
"""Seconds. Event loops count whole milliseconds, and come back within the one that follows."""


class SelectorSet:
    """What ``epoll`` is, on systems without it, as far as it is used here."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()

    def fileno(self) -> int:
        """Of what can be read when one of them can."""
        number: int = self._selector.fileno()
        return number

    def register(self, fd: int, events: int) -> None:
        """Tell of ``fd`` from now on."""
        self._selector.register(fd, events)

    def unregister(self, fd: int) -> None:
        """Tell of it no more."""
        self._selector.unregister(fd)

    def poll(self, timeout: float, most: int) -> Sequence[tuple[int, int]]:
        """What can be read now, at most so many."""
        return [(key.fd, events) for key, events in self._selector.select(timeout)[:most]]


new_set = select.epoll if sys.platform == "linux" else SelectorSet


class SocketSet:
    """Belongs to the thread of its event loop."""

    def __init__(self) -> None:
        self._set = new_set()
        self._callbacks: dict[int, Callable[[], object]] = {}
        self._ready: Iterator[tuple[int, int]] = iter(())
        """What the last look has found, and nobody has been called for yet."""
        self._pressure = Pressure()

    def fileno(self) -> int:
        """Of what can be read when one of them can."""
        return self._set.fileno()

    def add(self, fd: int, callback: Callable[[], object]) -> None:
        """Call ``callback`` whenever ``fd`` can be read, in place of who was called before. Sync.

        Idempotent.
        """
        if fd not in self._callbacks:
            self._set.register(fd, selectors.EVENT_READ)  # which is EPOLLIN, too
        self._callbacks[fd] = callback

    def discard(self, fd: int, callback: Callable[[], object]) -> None:
        """Call ``callback`` no more. Sync, idempotent; also when ``fd`` has been closed."""
        # Somebody else's socket may have the number by now.
        if self._callbacks.get(fd) == callback:
            del self._callbacks[fd]
            # The kernel takes out by itself what is closed.
            with suppress(OSError, KeyError):
                self._set.unregister(fd)

    def call(self) -> bool:
        """Call whoever can read now; whether all may rest for a moment then. Sync."""
        found = self._look()
        return found >= CROWD and self._pressure.high()

    def let_pass(self) -> None:
        """``call`` in the midst of other work, for tokens that need not wait for its end. Sync.

        Within a task, too: a call runs inside of it, and another task is woken. Where the event
        loop has no time left, nobody passes: then it is worth more to do much at once.
        """
        if not self._pressure.was_high:
            self._call_ready()
            self._look()

    def _look(self) -> int:
        found = self._set.poll(0, EVENTS)
        self._ready = iter(found)
        self._call_ready()
        return len(found)

    def _call_ready(self) -> None:
        # Whoever is called may let others pass: each of them is called once.
        for fd, _ in self._ready:
            # Whoever was called before may have stopped it.
            callback = self._callbacks.get(fd)
            if callback is not None:
                try:
                    callback()
                except Exception:
                    logger.exception("whoever was told that a socket can be read has failed")

    def call_in(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have ``loop``, the running one, ``call`` from now on. Sync."""
        loop.add_reader(self.fileno(), self._called)

    def _called(self) -> None:
        if self.call():
            loop = asyncio.get_running_loop()
            loop.remove_reader(self.fileno())
            loop.call_later(REST, self.call_in, loop)

    async def run(self) -> None:
        """``call``, for event loops that do not; until cancelled."""
        while True:
            await anyio.wait_readable(self.fileno())
            if self.call():
                await anyio.sleep(REST)


# A loop keeps its own set, by what it calls: held here, a socket that nobody has closed would keep
# its loop for ever.
sets_of_loops: WeakKeyDictionary[object, ReferenceType[SocketSet]] = WeakKeyDictionary()


def socket_set() -> SocketSet:
    """That of the running event loop.

    :raises ~anyio.NoEventLoopError: called outside of one.
    """
    loop = anyio.lowlevel.current_token().native_token
    reference = sets_of_loops.get(loop)
    members = None if reference is None else reference()
    if members is None:
        members = SocketSet()
        sets_of_loops[loop] = ref(members)
        if isinstance(loop, asyncio.AbstractEventLoop):
            members.call_in(loop)
        else:
            import trio

            # Of no request and no connection: whoever is called takes care of its own errors.
            trio.lowlevel.spawn_system_task(members.run)
    return members
