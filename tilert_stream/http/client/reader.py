"""Reading from a non-blocking socket: what is there, or what comes first.

The event loop's own call reads, up to a mark, ahead of the task that wants it, or hands what it has
read to whoever does without a task.
"""

from __future__ import annotations

import asyncio
import ssl
from math import inf
from typing import TYPE_CHECKING, Final

import anyio
import anyio.lowlevel

from ...parking import make_parking
from ..errors import ClientGone
from ..readiness import Readiness
from ..sockets import READ_BYTES, receive_ready

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

__all__ = ("Reader",)

HIGH_WATER: Final = 256 * 1024
"""So much is read ahead of the task that wants it."""


class Reader:
    """Reads one socket, on the running loop, for one task or one callback.

    :raises ~anyio.NoEventLoopError: made outside of an event loop.
    """

    __slots__ = (
        "_callback",
        "_deadline",
        "_failure",
        "_loop",
        "_parking",
        "_pieces",
        "_readiness",
        "_size",
        "_sock",
        "_timer",
        "_told_again",
    )

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        loop = anyio.lowlevel.current_token().native_token
        self._loop = loop if isinstance(loop, asyncio.AbstractEventLoop) else None
        # Nobody tells of a TLS record that is buffered: there a socket is read until nothing is
        # left.
        self._told_again = not isinstance(sock, ssl.SSLSocket)
        self._readiness = Readiness(sock, self._read)
        self._parking = make_parking()
        self._callback: Callable[[], object] | None = None
        self._pieces: list[bytes] = []
        self._size = 0
        self._failure: ClientGone | None = None
        self._timer: asyncio.TimerHandle | None = None
        """Comes at the deadline or before; it outlives its wait, for the next one."""
        self._deadline = inf
        """Until when a task waits, by the loop's clock; ``inf``: none does, or no longer."""

    @property
    def ready(self) -> bool:
        """Whether something has been read ahead, an end or a failure included."""
        return bool(self._pieces) or self._failure is not None

    def let_others_pass(self) -> None:
        """As ``Readiness.let_others_pass``. Sync."""
        self._readiness.let_others_pass()

    async def receive(self) -> bytes:
        """What is there, or what comes first; empty at the end of the input.

        A checkpoint only where it has to wait.

        :raises ~tilert_stream.http.ClientGone: the connection was reset, or closed here.
        """
        while (data := self.take()) is None:
            await self._parking.park()
        return data

    async def receive_within(self, seconds: float | None) -> bytes | None:
        """``receive``, but None if nothing has come in ``seconds``; None: wait for ever."""
        data = self.take()
        if data is not None:
            return data
        if seconds is None or seconds == inf:
            return await self.receive()
        if self._loop is None:
            with anyio.move_on_after(seconds):
                return await self.receive()
            return None
        # A cancel scope, which would do as well, costs ten times as much.
        self._deadline = deadline = self._loop.time() + seconds
        if self._timer is None or self._timer.when() > deadline:
            self._set_timer(self._loop, deadline)
        try:
            while self._deadline < inf:
                await self._parking.park()
                data = self.take()
                if data is not None:
                    return data
            return None
        finally:
            self._deadline = inf

    def _set_timer(self, loop: asyncio.AbstractEventLoop, moment: float) -> None:
        """One a connection: most waits are over long before, and need none of their own."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(moment, self._come, loop, moment)

    def _come(self, loop: asyncio.AbstractEventLoop, moment: float) -> None:
        self._timer = None
        if moment < self._deadline < inf:
            # It was made for an earlier wait.
            self._set_timer(loop, self._deadline)
        elif self._deadline < inf:
            self._deadline = inf
            self._parking.unpark()

    async def wait(self) -> None:
        """Wait until something comes, and leave it there. Always a checkpoint."""
        if self.ready:
            await anyio.lowlevel.checkpoint()
        self._readiness.start()
        while not self.ready:
            await self._parking.park()

    def take(self) -> bytes | None:
        """What is there; None: nothing. Sync.

        :raises ~tilert_stream.http.ClientGone: as ``receive``.
        """
        if not self._pieces:
            if self._failure is not None:
                raise self._failure
            self._readiness.start()
            return None
        pieces, self._pieces = self._pieces, []
        self._size = 0
        if len(pieces) == 1:
            return pieces[0]
        if not pieces[-1]:
            # The end of the input is told on its own, behind what came before it.
            self._pieces.append(pieces.pop())
        return b"".join(pieces)

    def on_ready(self, callback: Callable[[], object] | None) -> None:
        """Call ``callback`` when something has come, in place of a task; None: no longer. Sync.

        It is called by the event loop, in no task of ours, takes what is there, and must not raise.
        """
        self._callback = callback

    def _read(self) -> None:
        full = False
        try:
            while (data := receive_ready(self._sock)) is not None:
                self._pieces.append(data)
                self._size += len(data)
                full = bool(data) and self._size >= HIGH_WATER
                if not data or full:
                    self._readiness.stop()
                    break
                if self._told_again and len(data) < READ_BYTES:
                    break
        except ClientGone as error:
            self._readiness.stop()
            self._failure = error
        while self._callback is not None:
            self._callback()
            if not self._pieces:
                if full and self._failure is None:
                    self._readiness.start()
                return
            # What is left is the end, which is told on its own.
        self._parking.unpark_at_once()

    def close(self) -> None:
        """Stop reading for good, before the socket is closed; a ``receive`` that waits fails."""
        self._readiness.stop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._failure is None:
            self._failure = _closed()
            self._parking.unpark()


def _closed() -> ClientGone:
    return ClientGone("the connection was closed by its reader")
