"""Between any two hosts: plain TCP, from region to region.

In: a card with an address, a port and a secret. Out: bytes that the kernel puts into the peer's
region. One connection and one thread a peer on the writing side, one thread a writer on the reading
side; both spend their time in system calls of many megabytes, so the event loop stays free.
"""

from __future__ import annotations

import socket
from ipaddress import IPv4Address, IPv6Address, ip_address
from secrets import token_bytes
from typing import TYPE_CHECKING, Final, TypeAlias

from .abc import Caps
from .errors import HandshakeMismatch, TransportUnavailable
from .host_transport import HostTransport
from .listener import Listener
from .tcp_receiver import TcpReceiver
from .tcp_sender import TcpSender, tune
from .tcp_wire import MAX_DESCRIPTORS

if TYPE_CHECKING:
    from .card import Card, Detail
    from .latch import Latch
    from .thread_lane import Mover

__all__ = ("TcpTransport",)

Address: TypeAlias = "IPv4Address | IPv6Address"

SECRET_BYTES: Final = 16
BACKLOG: Final = 128


class TcpTransport(HostTransport):
    """Whoever has the card can write; the bytes are not encrypted.

    :param host: the IP address to listen on. ``"::"`` takes IPv4 as well.
    :param port: 0 for any free one.
    :param advertise: the address or name that peers dial; needed where ``host`` is ``"::"`` or
        ``"0.0.0.0"`` and this host's name does not lead peers here.
    :raises TransportUnavailable: ``host`` is no IP address. ``card`` raises it where nothing can
        listen there.
    """

    name = "tcp"
    caps = Caps(
        one_sided=False,
        zero_copy=False,
        hard_abort=True,
        same_host_only=False,
        device_memory=False,
        max_descriptors=MAX_DESCRIPTORS,
    )

    def __init__(
        self, *, host: str = "127.0.0.1", port: int = 0, advertise: str | None = None
    ) -> None:
        super().__init__()
        self._host = _address(host)
        self._port = port
        self._advertise = advertise
        self._secret = token_bytes(SECRET_BYTES)
        self._listener: Listener | None = None

    def _listen(self) -> dict[str, Detail]:
        if self._listener is None:
            sock = _bound(self._host, self._port)
            self._port = int(sock.getsockname()[1])
            # Accepted connections inherit these.
            tune(sock)
            receiver = TcpReceiver(self._memory, bytes.fromhex(self.incarnation), self._secret)
            self._listener = Listener(sock, receiver.serve)
        return {"host": self._dialled(), "port": self._port, "secret": self._secret.hex()}

    def _dialled(self) -> str:
        if self._advertise is not None:
            return self._advertise
        return socket.gethostname() if self._host.is_unspecified else str(self._host)

    def _mover(self, card: Card) -> Mover:
        port = card.number("port")
        if not 0 < port < 1 << 16:
            raise HandshakeMismatch(f"the peer's card: port is {port}, needs 1 to 65535")
        return TcpSender(
            self._memory,
            card.text("host"),
            port,
            bytes.fromhex(card.incarnation),
            card.secret(SECRET_BYTES),
        )

    def _stop_listening(self) -> Latch | None:
        if self._listener is None:
            return None
        self._listener.close()
        return self._listener.ended


def _address(host: str) -> Address:
    try:
        return ip_address(host)
    except ValueError as error:
        raise TransportUnavailable(
            f"tcp: host is {host!r}; an IP address to listen on is needed, such as '127.0.0.1' or"
            " '::', and a name can be given as advertise"
        ) from error


def _bound(host: Address, port: int) -> socket.socket:
    family = socket.AF_INET6 if host.version == 6 else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind((str(host), port))
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise TransportUnavailable(f"tcp cannot listen on {host} port {port}: {error}") from error
    return sock
