"""The writing end of a TCP connection: one header, then the regions' bytes as they lie.

In: transfers. Out: bytes, and an outcome once the reader has them all. Runs on the lane's thread.

Giving a write up half-closes the connection. The reader takes what is on its way, meets the end in
the middle of a write, and closes; that close is the proof that nothing more can land. The next
write connects anew.
"""

from __future__ import annotations

import errno
import socket
import threading
from typing import TYPE_CHECKING, Final

from .errors import HandshakeMismatch, PeerLost, PeerStale, PlanInvalid, TransferFailed
from .sockets import IOV_MAX, advance, receive_exactly, shut_down
from .tcp_wire import ANSWER, DONE, HELLO, MAGIC, ROW, WRITE, Status

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .host_memory import HostMemory
    from .lane import Transfer

__all__ = ("TcpSender", "tune")

SILENCE_MS: Final = 30_000
"""Milliseconds without an acknowledgement after which the kernel gives the connection up."""


class TcpSender:
    """A ``Mover``.

    :param ours: the memory that transfers read, by region id.
    :param host: where the peer listens, an address or a name.
    """

    def __init__(
        self,
        ours: Mapping[int, HostMemory],
        host: str,
        port: int,
        incarnation: bytes,
        secret: bytes,
    ) -> None:
        self._ours = ours
        self._host = host
        self._port = port
        self._incarnation = incarnation
        self._secret = secret
        self._name = f"tcp peer {incarnation.hex()} at {host} port {port}"
        self._lock = threading.Lock()
        self._sock: socket.socket | None = None
        self._greeted = False
        self._stopped = False
        self._abandoned = False

    def open(self) -> None:
        """Connect, and prove that the peer is the one on the card."""
        self._connection()

    def move(self, transfer: Transfer) -> None:
        """Write ``transfer`` and wait for the reader's word."""
        with self._lock:
            # Of the write before; a stop of this one has marked the transfer first.
            stopped, self._stopped = self._stopped, False
        if stopped:
            self._drop()
        if transfer.given_up:
            return
        sock = self._connection()
        if transfer.given_up:
            return
        try:
            self._send(sock, transfer)
            status, _ = DONE.unpack(self._answer(sock, DONE.size))
        except (OSError, EOFError) as error:
            self._fail(sock, error, stopped=transfer.given_up)
            return
        if status != Status.OK:
            self._drop()
            raise PlanInvalid(f"{self._name} refused the write: {Status(status).name}")

    def _send(self, sock: socket.socket, transfer: Transfer) -> None:
        memory = self._ours[transfer.source].view
        rows = [ROW.pack(to, nbytes) for _, to, nbytes in transfer.segments]
        header = WRITE.pack(transfer.region, len(rows), transfer.nbytes)
        views = [memoryview(header + b"".join(rows))]
        views += [memory[from_ : from_ + nbytes] for from_, _, nbytes in transfer.segments]
        begin = 0
        while begin < len(views):
            sent = sock.sendmsg(views[begin : begin + IOV_MAX])
            begin = advance(views, begin, sent)

    def _answer(self, sock: socket.socket, nbytes: int) -> bytes:
        data = receive_exactly(sock, nbytes)
        if len(data) < nbytes:
            raise EOFError("it closed the connection")
        return data

    def _fail(self, sock: socket.socket, error: Exception, *, stopped: bool) -> None:
        """After a broken write: raise unless we broke it ourselves, and it has come to rest."""
        settled = _tells_the_end(error) and self._at_rest(sock)
        self._drop()
        if not stopped:
            raise PeerLost(f"{self._name} has gone: {error}", settled=settled) from error
        if not settled:
            raise TransferFailed(
                f"{self._name} did not confirm that the write has stopped: {error}", settled=False
            ) from error

    def _at_rest(self, sock: socket.socket) -> bool:
        """Wait for the reader's close. False if it cannot be known: the network fell silent."""
        shut_down(sock, socket.SHUT_WR)
        try:
            while sock.recv(4096):
                pass
        except OSError as error:
            return _tells_the_end(error)
        return not self._abandoned

    # --- the connection ----------------------------------------------------------------------

    def _connection(self) -> socket.socket:
        # A peer that has gone since the last write may be back: look before a write pays for it.
        if self._sock is not None and not _is_quiet(self._sock):
            self._drop()
        return self._sock if self._sock is not None else self._dial()

    def _dial(self) -> socket.socket:
        failure: Exception | None = None
        try:
            found = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise PeerLost(f"{self._name} is not known here: {error}") from error
        for family, kind, protocol, _, address in found:
            try:
                return self._try(socket.socket(family, kind, protocol), address)
            except (OSError, EOFError) as error:
                failure = error
        raise PeerLost(f"{self._name} does not answer: {failure}") from failure

    def _try(self, sock: socket.socket, address: tuple[object, ...]) -> socket.socket:
        if not self._adopt(sock):
            raise ConnectionAbortedError("connecting was given up")
        try:
            tune(sock)
            sock.connect(address)
            self._greet(sock)
        except BaseException:
            self._drop()
            raise
        self._greeted = True
        return sock

    def _adopt(self, sock: socket.socket) -> bool:
        """Make ``sock`` the one that ``stop`` and ``abandon`` reach; False if they came before."""
        with self._lock:
            refused = self._abandoned or self._stopped
            if not refused:
                self._sock = sock
                self._greeted = False
        if refused:
            sock.close()
        return not refused

    def _greet(self, sock: socket.socket) -> None:
        sock.sendall(HELLO.pack(MAGIC, self._incarnation, self._secret))
        magic, status, incarnation = ANSWER.unpack(self._answer(sock, ANSWER.size))
        if magic != MAGIC:
            raise HandshakeMismatch(
                f"{self._name} speaks {magic!r}, {MAGIC!r} is needed: another program listens there"
            )
        if status == Status.STALE:
            raise PeerStale(f"{self._name} has restarted as {incarnation.hex()}; get its new card")
        if status != Status.OK:
            raise HandshakeMismatch(f"{self._name} refused the card's secret; get its new card")

    def _drop(self) -> None:
        with self._lock:
            sock, self._sock = self._sock, None
        if sock is not None:
            sock.close()

    # --- from other threads ------------------------------------------------------------------

    def stop(self) -> None:
        """End the running write in its middle; before its first byte, the connection."""
        with self._lock:
            self._stopped = True
            if self._sock is not None:
                shut_down(self._sock, socket.SHUT_WR if self._greeted else socket.SHUT_RDWR)

    def abandon(self) -> None:
        """Wait for the peer no longer."""
        with self._lock:
            self._abandoned = True
            if self._sock is not None:
                shut_down(self._sock)

    def close(self) -> None:
        """Hang up."""
        self._drop()


def _tells_the_end(error: Exception) -> bool:
    """Whether ``error`` says that the reader has closed its end, and not only that it is silent.

    A reset is a close with bytes unread: nobody there takes them any more.
    """
    return isinstance(error, EOFError) or (
        isinstance(error, OSError) and error.errno in (errno.ECONNRESET, errno.EPIPE)
    )


def _is_quiet(sock: socket.socket) -> bool:
    """Whether the connection is open and idle."""
    try:
        sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def tune(sock: socket.socket) -> None:
    """Send at once, and notice a host that has vanished."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENCE_MS)
