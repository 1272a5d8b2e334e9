"""Who is told that a server's socket has something to read: a task that waits, or a call.

What nobody asks for stays in the kernel, which is how a client is held back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..parking import make_parking
from .readiness import Readiness
from .sockets import receive_ready

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

__all__ = ("SocketInput",)


class SocketInput:
    """The reading side of one socket, on the running loop; one task or one callback at a time.

    From request to request it stays ready to be told.
    """

    __slots__ = ("_callback", "_parking", "_readiness", "_sock")

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._parking = make_parking()
        self._callback: Callable[[], bool] | None = None
        self._readiness = Readiness(sock, self._readable)

    def ready(self) -> bytes | None:
        """What can be read without waiting, as ``receive_ready``. Sync.

        :raises ClientGone: the connection was reset.
        """
        return receive_ready(self._sock)

    def let_others_pass(self) -> None:
        """As ``Readiness.let_others_pass``. Sync."""
        self._readiness.let_others_pass()

    async def receive(self) -> bytes:
        """Wait for bytes; empty at the end of the input. Always a checkpoint.

        :raises ClientGone: the connection was reset.
        """
        try:
            while True:
                self.call(self._wake)
                await self._parking.park()
                data = receive_ready(self._sock)
                if data is not None:
                    return data
        finally:
            self._callback = None

    def call(self, callback: Callable[[], bool]) -> None:
        """Have the event loop call ``callback`` when something can be read, until it says False.

        It reads what is there, and must not raise. Sync.
        """
        self._callback = callback
        self._readiness.start()

    def forget(self) -> None:
        """Call nobody any more. Sync, idempotent."""
        self._callback = None

    def close(self) -> None:
        """Stop for good, before the socket is closed. Sync, idempotent."""
        self._callback = None
        self._readiness.stop()

    def _readable(self) -> None:
        callback = self._callback
        if callback is None:
            # Nobody wants it: the event loop would come back to it in every turn.
            self._readiness.stop()
        elif not callback() and self._callback is callback:
            self._callback = None

    def _wake(self) -> bool:
        self._parking.unpark_at_once()
        return True
