"""Between two processes of one host: the writer maps the peer's memory and copies once.

In: a card with the name of an abstract Unix socket. Over it go, once a connection, a hello and the
descriptors of the peer's regions (``SCM_RIGHTS``); afterwards it only tells, by closing, that the
peer has gone. A write is a copy into the mapping: the peer's process takes no part.
"""

from __future__ import annotations

import hmac
import os
import socket
import struct
from secrets import token_bytes
from typing import TYPE_CHECKING, Final

from .abc import Caps
from .copying import copy_segments
from .errors import HandshakeMismatch, PeerLost
from .host import HOST_ID
from .host_transport import HostTransport
from .listener import Listener
from .shm_memory import SharedMemory, map_shared
from .sockets import receive_exactly, shut_down

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .card import Card, Detail
    from .host_memory import HostMemory
    from .lane import Transfer
    from .latch import Latch

__all__ = ("ShmTransport",)

SECRET_BYTES: Final = 16
WELCOME: Final = struct.Struct("!I")
"""How many regions follow, each as a message of its own: REGION beside one descriptor."""
REGION: Final = struct.Struct("!IQ")
"""Region id, bytes."""
CREDENTIALS: Final = struct.Struct("3i")
"""As in struct ucred of unix(7): process, user, group."""
HANDSHAKE_SECONDS: Final = 10.0


class ShmTransport(HostTransport):
    """Regions that peers can write to come from ``allocate``; registered ones are sources only."""

    name = "shm"
    caps = Caps(
        one_sided=True,
        zero_copy=True,
        hard_abort=True,
        same_host_only=True,
        device_memory=False,
        max_descriptors=1 << 20,
    )

    def __init__(self) -> None:
        super().__init__()
        self._secret = token_bytes(SECRET_BYTES)
        self._listener: Listener | None = None

    def _make_memory(self, nbytes: int) -> HostMemory:
        return SharedMemory(nbytes)

    def _shared(self) -> dict[int, SharedMemory]:
        return {id_: m for id_, m in self._memory.items() if isinstance(m, SharedMemory)}

    def _writable(self) -> Mapping[int, HostMemory]:
        return self._shared()

    def _listen(self) -> dict[str, Detail]:
        if self._listener is None:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            sock.bind(_address(self.incarnation))
            sock.listen()
            self._listener = Listener(sock, self._serve)
        return {"host": HOST_ID, "secret": self._secret.hex()}

    def _serve(self, sock: socket.socket) -> None:
        sock.settimeout(HANDSHAKE_SECONDS)
        if _user(sock) not in (os.geteuid(), 0):
            return
        if not hmac.compare_digest(receive_exactly(sock, SECRET_BYTES), self._secret):
            return
        regions = self._shared()
        sock.sendall(WELCOME.pack(len(regions)))
        for id_, memory in regions.items():
            socket.send_fds(sock, [REGION.pack(id_, memory.nbytes)], [memory.fd])
        sock.settimeout(None)
        sock.recv(1)

    def _mover(self, card: Card) -> _ShmMover:
        if card.text("host") != HOST_ID:
            raise HandshakeMismatch(
                f"the peer's card: host is {card.text('host')}, ours is {HOST_ID};"
                " shm joins processes of one host and network namespace, use tcp or nixl"
            )
        return _ShmMover(self._memory, card)

    def _stop_listening(self) -> Latch | None:
        for memory in self._shared().values():
            memory.close_fd()
        if self._listener is None:
            return None
        self._listener.close()
        return self._listener.ended


class _ShmMover:
    def __init__(self, ours: Mapping[int, HostMemory], card: Card) -> None:
        self._ours = ours
        self._incarnation = card.incarnation
        self._regions = card.regions
        self._secret = card.secret(SECRET_BYTES)
        self._mapped: dict[int, HostMemory] = {}
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)

    def open(self) -> None:
        try:
            self._sock.settimeout(HANDSHAKE_SECONDS)
            self._sock.connect(_address(self._incarnation))
            self._sock.sendall(self._secret)
            self._take_regions()
            self._sock.settimeout(0)
        except (OSError, EOFError) as error:
            raise PeerLost(f"shm peer {self._incarnation} does not answer: {error}") from error

    def _take_regions(self) -> None:
        (count,) = WELCOME.unpack(self._receive(WELCOME.size))
        for _ in range(count):
            data, fds, _, _ = socket.recv_fds(self._sock, REGION.size, 1)
            try:
                if len(data) != REGION.size or len(fds) != 1:
                    raise EOFError("it closed the connection in its handshake")
                id_, nbytes = REGION.unpack(data)
                self._mapped[id_] = map_shared(fds[0], nbytes)
            finally:
                for fd in fds:
                    os.close(fd)
        for id_, nbytes in self._regions.items():
            memory = self._mapped.get(id_)
            if memory is None or memory.nbytes != nbytes:
                got = None if memory is None else memory.nbytes
                raise HandshakeMismatch(
                    f"the peer's card gives region {id_} {nbytes} bytes, its process {got}"
                )

    def _receive(self, nbytes: int) -> bytes:
        data = receive_exactly(self._sock, nbytes)
        if len(data) < nbytes:
            raise EOFError("it refused the card, or runs as another user")
        return data

    def move(self, transfer: Transfer) -> None:
        self._check_alive()
        source = self._ours[transfer.source].address
        copy_segments(transfer, source, self._mapped[transfer.region].address)
        # Its memory outlives the peer in our mapping: without this look a write to the dead
        # would pass for a good one.
        self._check_alive()

    def _check_alive(self) -> None:
        try:
            if self._sock.recv(1):
                raise PeerLost(f"shm peer {self._incarnation} sent bytes that it must not send")
        except BlockingIOError:
            return
        except OSError as error:
            raise PeerLost(f"shm peer {self._incarnation} has gone: {error}") from error
        raise PeerLost(f"shm peer {self._incarnation} has gone")

    def stop(self) -> None:
        """The copy looks at the transfer itself."""

    def abandon(self) -> None:
        # Wakes a handshake with a peer that hangs.
        shut_down(self._sock)

    def close(self) -> None:
        self._sock.close()
        self._mapped.clear()


def _address(incarnation: str) -> str:
    # Abstract: nothing is left in the file system, whatever way a process ends.
    return f"\0tilert-shm-{incarnation}"


def _user(sock: socket.socket) -> int:
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    _, user, _ = CREDENTIALS.unpack(credentials)
    return int(user)
