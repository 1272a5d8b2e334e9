"""Reading from a non-blocking socket: what is there, or what comes first.

``anyio.wait_readable`` registers the socket with the event loop for one event, and takes it out
again: on asyncio that is half of the cost of reading a token's line. So there the socket stays
registered for as long as its answer is read, and the loop's own callback reads it. Trio registers
it in the kernel for one event in any case.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, Final, Protocol

import anyio
import anyio.lowlevel

from ...parking import make_parking
from ..errors import ClientGone
from ..sockets import FAIR_BYTES, READ_BYTES, receive_ready

if TYPE_CHECKING:
    import socket

__all__ = ("Reader", "make_reader")

READ_COST: Final = 4096
"""What a read counts for, at least, of ``FAIR_BYTES``: small ones cost time too."""
HIGH_WATER: Final = 256 * 1024
"""So much is read ahead of the task that wants it."""


class Reader(Protocol):
    """Reads one socket, for one task."""

    async def receive(self) -> bytes:
        """What is there, or what comes first; empty at the end of the input.

        A checkpoint only where it has to wait, or after so many bytes.

        :raises ~tilert_stream.http.ClientGone: the connection was reset, or closed here.
        """
        ...

    def rest(self) -> bool:
        """Stop reading until the next ``receive``; whether nothing has been read ahead. Sync."""
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
    __slots__ = ("_failure", "_fd", "_loop", "_parking", "_pieces", "_registered", "_size", "_sock")

    def __init__(self, sock: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        self._sock = sock
        # Not the socket: the selector looks for it first, and describes in words what it has not.
        self._fd = sock.fileno()
        self._loop = loop
        self._parking = make_parking()
        self._registered = False
        self._pieces: list[bytes] = []
        self._size = 0
        self._failure: ClientGone | None = None

    async def receive(self) -> bytes:
        while not self._pieces:
            if self._failure is not None:
                raise self._failure
            if not self._registered:
                self._registered = True
                self._loop.add_reader(self._fd, self._read)
            await self._parking.park()
        pieces, self._pieces = self._pieces, []
        self._size = 0
        if len(pieces) == 1:
            return pieces[0]
        if not pieces[-1]:
            # The end of the input is told on its own, behind what came before it.
            self._pieces.append(pieces.pop())
        return b"".join(pieces)

    def _read(self) -> None:
        # Until nothing is there: uvloop tells of a broken connection once, and never again.
        try:
            while (data := receive_ready(self._sock)) is not None:
                self._pieces.append(data)
                self._size += len(data)
                if not data or self._size >= HIGH_WATER:
                    self.rest()
                    break
        except ClientGone as error:
            self._fail(error)
        self._parking.unpark()

    def rest(self) -> bool:
        if self._registered:
            self._registered = False
            self._loop.remove_reader(self._fd)
        return not self._pieces

    def close(self) -> None:
        self._fail(_closed())

    def _fail(self, failure: ClientGone) -> None:
        self.rest()
        if self._failure is None:
            self._failure = failure
            self._parking.unpark()


class _WaitingReader:
    __slots__ = ("_emptied", "_plain", "_sock", "_unyielded")

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        # Nothing tells whether a TLS record is buffered but reading it.
        self._plain = not isinstance(sock, ssl.SSLSocket)
        self._emptied = True
        self._unyielded = 0

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

    def rest(self) -> bool:
        return True

    def close(self) -> None:
        """Closing the socket wakes whoever waits."""


def _closed() -> ClientGone:
    return ClientGone("the connection was closed by its reader")
