"""Who is told that a server's socket has something to read: a task that waits, or a call.

What nobody asks for stays in the kernel, which is how a client is held back. On asyncio the socket
stays registered with the event loop from request to request: registering it for each is a system
call and half of the cost of hearing of the next one. Trio registers for one event in any case.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

import anyio
import anyio.lowlevel

from ..parking import make_parking
from .sockets import receive_ready

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

__all__ = ("SocketInput", "make_input")


class SocketInput(Protocol):
    """The reading side of one socket; one task or one callback at a time."""

    def ready(self) -> bytes | None:
        """What can be read without waiting, as ``receive_ready``. Sync.

        :raises ClientGone: the connection was reset.
        """
        ...

    async def receive(self) -> bytes:
        """Wait for bytes; empty at the end of the input. Always a checkpoint.

        :raises ClientGone: the connection was reset.
        """
        ...

    def call(self, callback: Callable[[], bool], /) -> bool:
        """Have the event loop call ``callback`` when something can be read, until it says False.

        It reads what is there, and must not raise. False: this event loop calls nobody (trio).
        """
        ...

    def forget(self) -> None:
        """Call nobody any more. Sync, idempotent."""
        ...

    def close(self) -> None:
        """Stop for good, before the socket is closed. Sync, idempotent."""
        ...


def make_input(sock: socket.socket) -> SocketInput:
    """The reading side for the running event loop.

    :raises ~anyio.NoEventLoopError: called outside of one.
    """
    loop = anyio.lowlevel.current_token().native_token
    if isinstance(loop, asyncio.AbstractEventLoop):
        return _RegisteredInput(sock, loop)
    return _WaitingInput(sock)


class _RegisteredInput:
    __slots__ = ("_callback", "_fd", "_loop", "_parking", "_registered", "_sock")

    def __init__(self, sock: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        self._sock = sock
        # Not the socket: it may be closed by the time.
        self._fd = sock.fileno()
        self._loop = loop
        self._parking = make_parking()
        self._callback: Callable[[], bool] | None = None
        self._registered = False

    def ready(self) -> bytes | None:
        return receive_ready(self._sock)

    async def receive(self) -> bytes:
        try:
            while True:
                self.call(self._wake)
                await self._parking.park()
                data = receive_ready(self._sock)
                if data is not None:
                    return data
        finally:
            self._callback = None

    def call(self, callback: Callable[[], bool]) -> bool:
        self._callback = callback
        if not self._registered:
            self._registered = True
            self._loop.add_reader(self._fd, self._readable)
        return True

    def forget(self) -> None:
        self._callback = None

    def close(self) -> None:
        self._callback = None
        self._unregister()

    def _readable(self) -> None:
        callback = self._callback
        if callback is None:
            # Nobody wants it: the event loop would come back to it in every turn.
            self._unregister()
        elif not callback() and self._callback is callback:
            self._callback = None

    def _wake(self) -> bool:
        self._parking.unpark_at_once()
        return True

    def _unregister(self) -> None:
        if self._registered:
            self._registered = False
            self._loop.remove_reader(self._fd)


class _WaitingInput:
    __slots__ = ("_sock",)

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def ready(self) -> bytes | None:
        return receive_ready(self._sock)

    async def receive(self) -> bytes:
        while True:
            await anyio.wait_readable(self._sock)
            data = receive_ready(self._sock)
            if data is not None:
                return data

    def call(self, _callback: Callable[[], bool]) -> bool:
        return False

    def forget(self) -> None:
        """Nobody is called."""

    def close(self) -> None:
        """Closing the socket wakes whoever waits."""
