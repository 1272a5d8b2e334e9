"""The reading end of a TCP connection: bytes go straight from the kernel into the region.

In: a connection. Out: bytes in our regions, and one ``DONE`` for each write. Runs on the
connection's own thread. A writer can only reach what was registered: every row is checked before a
byte is taken.
"""

from __future__ import annotations

import hmac
import socket
from typing import TYPE_CHECKING, Final

from .sockets import IOV_MAX, advance, receive_exactly
from .tcp_wire import ANSWER, DONE, HELLO, MAGIC, MAX_DESCRIPTORS, ROW, WRITE, Status

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .host_memory import HostMemory

__all__ = ("TcpReceiver",)

HANDSHAKE_SECONDS: Final = 10.0


class TcpReceiver:
    """Serves the writers of one transport.

    :param regions: what may be written, by region id; looked at for each write.
    :param incarnation: 16 bytes.
    :param secret: 16 bytes.
    """

    def __init__(
        self, regions: Mapping[int, HostMemory], incarnation: bytes, secret: bytes
    ) -> None:
        self._regions = regions
        self._incarnation = incarnation
        self._secret = secret

    def serve(self, sock: socket.socket) -> None:
        """Serve one writer until it hangs up, gives up, or breaks the protocol.

        :raises OSError: the connection broke.
        """
        sock.settimeout(HANDSHAKE_SECONDS)
        status = self._greet(receive_exactly(sock, HELLO.size))
        if status is None:
            return
        sock.sendall(ANSWER.pack(MAGIC, status, self._incarnation))
        sock.settimeout(None)
        if status is Status.OK:
            while self._take_write(sock):
                pass

    def _greet(self, hello: bytes) -> Status | None:
        if len(hello) < HELLO.size:
            return None
        magic, incarnation, secret = HELLO.unpack(hello)
        if magic != MAGIC:
            return None
        if incarnation != self._incarnation:
            return Status.STALE
        return Status.OK if hmac.compare_digest(secret, self._secret) else Status.DENIED

    def _take_write(self, sock: socket.socket) -> bool:
        header = receive_exactly(sock, WRITE.size)
        if len(header) < WRITE.size:
            return False
        region, rows, nbytes = WRITE.unpack(header)
        if not 0 < rows <= MAX_DESCRIPTORS:
            sock.sendall(DONE.pack(Status.OUT_OF_RANGE, 0))
            return False
        table = receive_exactly(sock, rows * ROW.size)
        if len(table) < rows * ROW.size:
            return False
        views = self._views(region, table, nbytes)
        if views is None:
            sock.sendall(DONE.pack(Status.OUT_OF_RANGE, 0))
            return False
        if not _receive_into(sock, views):
            return False
        sock.sendall(DONE.pack(Status.OK, nbytes))
        return True

    def _views(self, region: int, table: bytes, nbytes: int) -> list[memoryview] | None:
        """Where the bytes go; None if a row leaves the region."""
        memory = self._regions.get(region)
        if memory is None:
            return None
        views: list[memoryview] = []
        for offset, length in ROW.iter_unpack(table):
            if offset + length > memory.nbytes:
                return None
            views.append(memory.view[offset : offset + length])
        return views if sum(map(len, views)) == nbytes else None


def _receive_into(sock: socket.socket, views: list[memoryview]) -> bool:
    """Fill all ``views``; False if the writer stopped in between. They are used up."""
    begin = 0
    while begin < len(views):
        taken, *_ = sock.recvmsg_into(views[begin : begin + IOV_MAX], 0, socket.MSG_WAITALL)
        if taken == 0:
            return False
        begin = advance(views, begin, taken)
    return True
