"""Who is called when a socket can be read: the event loop's own word, for as long as it is wanted.

``anyio.wait_readable`` registers a socket with the event loop for one event and one task, and takes
it out again: on asyncio that is half of the cost of hearing of a token, and a task is stepped for
each. Here the socket stays registered, and what is called reads it. On trio, which registers for
one event in any case, a task of the run's own waits and calls.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

import anyio
import anyio.lowlevel

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

__all__ = ("Readiness", "make_readiness")

logger = logging.getLogger(__name__)


class Readiness(Protocol):
    """Calls whenever a socket can be read, as long as it is on."""

    tells_errors_again: bool
    """Whether a broken connection is told of for as long as nobody reads its error."""

    def start(self) -> None:
        """Call from now on. Sync, idempotent."""
        ...

    def stop(self) -> None:
        """Call no more; before the socket is closed, at the latest. Sync, idempotent."""
        ...


def make_readiness(sock: socket.socket, callback: Callable[[], object]) -> Readiness:
    """For the running event loop.

    :param callback: it must not raise, and reads, or stops this: else it is called again at once.
    :raises ~anyio.NoEventLoopError: called outside of one.
    """
    loop = anyio.lowlevel.current_token().native_token
    if isinstance(loop, asyncio.AbstractEventLoop):
        return _Registered(sock, callback, loop)
    return _Waiting(sock, callback)


class _Registered:
    __slots__ = ("_callback", "_fd", "_loop", "_on", "tells_errors_again")

    def __init__(
        self,
        sock: socket.socket,
        callback: Callable[[], object],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        # Not the socket: the selector looks for it first, and describes in words what it has not;
        # and it may be closed by the time.
        self._fd = sock.fileno()
        self._callback = callback
        self._loop = loop
        self._on = False
        # uvloop does so once.
        self.tells_errors_again = isinstance(loop, asyncio.SelectorEventLoop)

    def start(self) -> None:
        if not self._on:
            self._on = True
            self._loop.add_reader(self._fd, self._callback)

    def stop(self) -> None:
        if self._on:
            self._on = False
            self._loop.remove_reader(self._fd)


class _Waiting:
    __slots__ = ("_callback", "_scope", "_sock", "tells_errors_again")

    def __init__(self, sock: socket.socket, callback: Callable[[], object]) -> None:
        self._sock = sock
        self._callback = callback
        self._scope: anyio.CancelScope | None = None
        self.tells_errors_again = True

    def start(self) -> None:
        if self._scope is None:
            import trio

            self._scope = anyio.CancelScope()
            # Of no request and no connection: whoever is called takes care of its own errors.
            trio.lowlevel.spawn_system_task(self._run, self._scope)

    def stop(self) -> None:
        scope, self._scope = self._scope, None
        if scope is not None:
            scope.cancel()

    async def _run(self, scope: anyio.CancelScope) -> None:
        try:
            with scope, suppress(anyio.ClosedResourceError):
                while self._scope is scope:
                    await anyio.wait_readable(self._sock)
                    if self._scope is scope:
                        self._callback()
        except Exception:
            # The run itself would end with it.
            logger.exception("nobody is told any more that a socket can be read")
        finally:
            if self._scope is scope:
                self._scope = None
