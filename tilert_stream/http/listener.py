"""Where clients come in: settings → bound sockets → accepted sockets."""

from __future__ import annotations

import errno
import logging
import os
import socket
import stat
from typing import TYPE_CHECKING, TypeAlias

import anyio
import anyio.lowlevel
import anyio.to_thread

from .errors import BindFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from .ledger import Ledger
    from .scope import Address
    from .settings import ServerSettings

__all__ = ("Take", "accept_forever", "accept_waiting", "address_of", "bind", "unlink")

Take: TypeAlias = "Callable[[socket.socket, Address | None], None]"
"""Becomes the owner of an accepted socket, whose peer has that address."""

logger = logging.getLogger("tilert_stream.http")

EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
RETRY_SECONDS = 1.0
"""The longest wait after EMFILE: descriptors may also be freed elsewhere in the process."""


async def bind(settings: ServerSettings) -> list[socket.socket]:
    """Bind and listen, on every address that ``settings`` name.

    :raises BindFailed: an address is taken, not ours, or unknown.
    """
    try:
        if settings.uds is not None:
            return [await anyio.to_thread.run_sync(_bind_unix, settings.uds, settings.backlog)]
        found = await anyio.getaddrinfo(
            settings.host,
            settings.port,
            type=socket.SOCK_STREAM,
            flags=socket.AI_PASSIVE,
        )
        return _bind_all([(family, address) for family, _, _, _, address in found], settings)
    except OSError as error:
        where = settings.uds or f"{settings.host}:{settings.port}"
        raise BindFailed(
            f"Cannot listen on {where}: {error.strerror or error}. "
            "Stop what listens there, or choose another address or port.",
            param="uds" if settings.uds else "port",
        ) from error


def _bind_all(
    addresses: list[tuple[socket.AddressFamily, tuple[str, int]]], settings: ServerSettings
) -> list[socket.socket]:
    bound: list[socket.socket] = []
    port = settings.port
    try:
        for family, address in dict.fromkeys(addresses):
            sock = socket.socket(family, socket.SOCK_STREAM)
            bound.append(sock)
            sock.settimeout(0)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if settings.reuse_port:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                # Only "::" takes IPv4 clients in: a name may resolve to both families.
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, settings.host != "::")
            sock.bind((address[0], port, *address[2:]))
            sock.listen(settings.backlog)
            port = sock.getsockname()[1]
    except BaseException:
        for sock in bound:
            sock.close()
        raise
    return bound


def _bind_unix(path: str, backlog: int) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(0)
        try:
            sock.bind(path)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or not _is_abandoned(path):
                raise
            os.unlink(path)
            sock.bind(path)
        sock.listen(backlog)
    except BaseException:
        sock.close()
        raise
    return sock


def _is_abandoned(path: str) -> bool:
    """Whether ``path`` is a socket that nobody listens on any more."""
    if not stat.S_ISSOCK(os.stat(path).st_mode):
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(path) == errno.ECONNREFUSED


async def unlink(listener: socket.socket) -> None:
    """Remove a Unix listener's path; nothing for TCP."""
    if listener.family == socket.AF_UNIX:
        await anyio.Path(listener.getsockname()).unlink(missing_ok=True)


def address_of(sock: socket.socket) -> Address:
    """Name the socket's own end as an ASGI scope does: (host, port), or (path, None)."""
    name = sock.getsockname()
    return (name, None) if sock.family == socket.AF_UNIX else (name[0], name[1])


async def accept_forever(
    listener: socket.socket,
    ledger: Ledger,
    max_connections: int | None,
    take: Take,
) -> None:
    """Hand every new connection, non-blocking and without Nagle's delay, to ``take``."""
    while True:
        await anyio.wait_readable(listener)
        try:
            while max_connections is None or len(ledger.members) < max_connections:
                take(*_accept(listener))
            await ledger.wait_leave()
        except BlockingIOError:
            continue
        except OSError as error:
            if error.errno in EXHAUSTED:
                logger.warning("Cannot accept: %s; waiting for a connection to close.", error)
                with anyio.move_on_after(RETRY_SECONDS):
                    await ledger.wait_leave()
            else:
                # The client left between its SYN and our accept.
                logger.info("A connection broke while it was accepted: %s", error)


async def accept_waiting(
    listener: socket.socket, ledger: Ledger, settings: ServerSettings, take: Take
) -> None:
    """Take in who connected before the drain; closing the listener would reset them all.

    At most a full backlog of them: new clients that keep coming must not hold up the drain.
    """
    await anyio.lowlevel.checkpoint()
    limit = settings.max_connections
    for _ in range(settings.backlog):
        while limit is not None and len(ledger.members) >= limit:
            await ledger.wait_leave()
        try:
            take(*_accept(listener))
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno in EXHAUSTED:
                with anyio.move_on_after(RETRY_SECONDS):
                    await ledger.wait_leave()
            else:
                logger.info("A connection broke while it was accepted: %s", error)


def _accept(listener: socket.socket) -> tuple[socket.socket, Address | None]:
    sock, name = listener.accept()
    sock.settimeout(0)
    if sock.family == socket.AF_UNIX:
        return sock, None
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock, (name[0], name[1])
