"""Reading from a non-blocking socket: what is there, or what comes first.

``anyio.wait_readable`` registers the socket with the event loop for one event, and takes it out
again: on asyncio that is half of the cost of reading a token's line. So there the socket stays
registered as long as it lives, and the loop's own callback reads it, or hands what it has read to
whoever does without a task. Trio registers it in the kernel for one event in any case.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, Final, Protocol

import anyio
import anyio.lowlevel

from ...parking import make_parking
from ..errors import ClientGone
from ..sockets import FAIR_BYTES, READ_BYTES, is_unbroken, receive_ready

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

__all__ = ("Reader", "make_reader")

READ_COST: Final = 4096
"""What a read counts for, at least, of ``FAIR_BYTES``: small ones cost time too."""
HIGH_WATER: Final = 256 * 1024
"""So much is read ahead of the task that wants it."""


class Reader(Protocol):
    """Reads one socket, for one task or one callback."""

    @property
    def ready(self) -> bool:
        """Whether something has been read ahead, an end or a failure included."""
        ...

    async def receive(self) -> bytes:
        """What is there, or what comes first; empty at the end of the input.

        A checkpoint only where it has to wait, or after so many bytes.

        :raises ~tilert_stream.http.ClientGone: the connection was reset, or closed here.
        """
        ...

    async def receive_within(self, seconds: float) -> bytes | None:
        """``receive``, but None if nothing has come in ``seconds``."""
        ...

    async def wait(self) -> None:
        """Wait until something comes, and leave it there. Always a checkpoint."""
        ...

    def take(self) -> bytes | None:
        """What is there; None: nothing. Sync.

        :raises ~tilert_stream.http.ClientGone: as ``receive``.
        """
        ...

    def on_ready(self, callback: Callable[[], object] | None) -> bool:
        """Call ``callback`` when something has come, in place of a task; None: no longer. Sync.

        It is called by the event loop, outside of any task, takes what is there, and must not
        raise. False: the loop calls nobody, only ``receive`` can be used.
        """
        ...

    def close(self) -> None:
        """Stop reading for good, before the socket is closed; a ``receive`` that waits fails."""
        ...


def make_reader(sock: socket.socket) -> Reader:
    """The reader for the running event loop.

    :raises ~anyio.NoEventLoopError: called outside of one.
    """
    loop = anyio.lowlevel.current_token().native_token
    if isinstance(loop, asyncio.AbstractEventLoop):
        return _RegisteredReader(sock, loop)
    return _WaitingReader(sock)


class _RegisteredReader:
    __slots__ = (
        "_callback",
        "_failure",
        "_fd",
        "_loop",
        "_parking",
        "_pieces",
        "_registered",
        "_size",
        "_sock",
        "_told_again",
        "_told_of_errors",
    )

    def __init__(self, sock: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        self._sock = sock
        # Not the socket: the selector looks for it first, and describes in words what it has not.
        self._fd = sock.fileno()
        self._loop = loop
        # Nobody tells of a TLS record that is buffered: there a socket is read until nothing is
        # left.
        self._told_again = not isinstance(sock, ssl.SSLSocket)
        # uvloop tells of a broken connection once, perhaps with the last bytes that came before.
        self._told_of_errors = isinstance(loop, asyncio.SelectorEventLoop)
        self._parking = make_parking()
        self._callback: Callable[[], object] | None = None
        self._registered = False
        self._pieces: list[bytes] = []
        self._size = 0
        self._failure: ClientGone | None = None

    @property
    def ready(self) -> bool:
        return bool(self._pieces) or self._failure is not None

    async def receive(self) -> bytes:
        while (data := self.take()) is None:
            await self._parking.park()
        return data

    async def receive_within(self, seconds: float) -> bytes | None:
        # A cancel scope, which would do as well, costs ten times as much.
        expired = False

        def expire() -> None:
            nonlocal expired
            expired = True
            self._parking.unpark()

        timer = self._loop.call_later(seconds, expire)
        try:
            while (data := self.take()) is None and not expired:
                await self._parking.park()
            return data
        finally:
            timer.cancel()

    async def wait(self) -> None:
        if self.ready:
            await anyio.lowlevel.checkpoint()
        self._register()
        while not self.ready:
            await self._parking.park()

    def take(self) -> bytes | None:
        if not self._pieces:
            if self._failure is not None:
                raise self._failure
            self._register()
            return None
        pieces, self._pieces = self._pieces, []
        self._size = 0
        if len(pieces) == 1:
            return pieces[0]
        if not pieces[-1]:
            # The end of the input is told on its own, behind what came before it.
            self._pieces.append(pieces.pop())
        return b"".join(pieces)

    def on_ready(self, callback: Callable[[], object] | None) -> bool:
        self._callback = callback
        return True

    def _read(self) -> None:
        full = False
        try:
            while (data := receive_ready(self._sock)) is not None:
                self._pieces.append(data)
                self._size += len(data)
                full = bool(data) and self._size >= HIGH_WATER
                if not data or full:
                    self._unregister()
                    break
                if (
                    self._told_again
                    and len(data) < READ_BYTES
                    and (self._told_of_errors or is_unbroken(self._sock))
                ):
                    break
        except ClientGone as error:
            self._unregister()
            self._failure = error
        while self._callback is not None:
            self._callback()
            if not self._pieces:
                if full and self._failure is None:
                    self._register()
                return
            # What is left is the end, which is told on its own.
        self._parking.unpark_at_once()

    def _register(self) -> None:
        if not self._registered:
            self._registered = True
            self._loop.add_reader(self._fd, self._read)

    def _unregister(self) -> None:
        if self._registered:
            self._registered = False
            self._loop.remove_reader(self._fd)

    def close(self) -> None:
        self._unregister()
        if self._failure is None:
            self._failure = _closed()
            self._parking.unpark()


class _WaitingReader:
    __slots__ = ("_emptied", "_plain", "_sock", "_unyielded")

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        # Nothing tells whether a TLS record is buffered but reading it.
        self._plain = not isinstance(sock, ssl.SSLSocket)
        self._emptied = True
        self._unyielded = 0

    async def receive_within(self, seconds: float) -> bytes | None:
        with anyio.move_on_after(seconds):
            return await self.receive()
        return None

    async def receive(self) -> bytes:
        while True:
            if self._emptied:
                self._unyielded = 0
                await self._wait()
            elif self._unyielded > FAIR_BYTES:
                self._unyielded = 0
                await anyio.lowlevel.checkpoint()
            data = receive_ready(self._sock)
            self._emptied = data is None or (self._plain and len(data) < READ_BYTES)
            if data is not None:
                self._unyielded += max(len(data), READ_COST)
                return data

    async def _wait(self) -> None:
        try:
            await anyio.wait_readable(self._sock)
        except anyio.ClosedResourceError:
            raise _closed() from None

    @property
    def ready(self) -> bool:
        return False

    async def wait(self) -> None:
        await anyio.wait_readable(self._sock)

    def take(self) -> bytes | None:
        return receive_ready(self._sock)

    def on_ready(self, callback: Callable[[], object] | None) -> bool:
        return callback is None

    def close(self) -> None:
        """Closing the socket wakes whoever waits."""


def _closed() -> ClientGone:
    return ClientGone("the connection was closed by its reader")
