"""An origin in, a connected non-blocking socket out."""

from __future__ import annotations

import ipaddress
import logging
import os
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias

import anyio
import anyio.lowlevel

from ..errors import ClientGone
from ..sockets import reset
from ..tls import handshake
from .errors import ConnectFailed

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable, Sequence

    from .origin import Origin

__all__ = ("dial",)

logger = logging.getLogger("tilert_stream.http.client")

_Address: TypeAlias = "str | tuple[str, int]"


async def dial(
    origin: Origin, *, within: float, context: Callable[[], Awaitable[ssl.SSLContext]]
) -> socket.socket:
    """Connect, and with ``https`` shake hands. Always a checkpoint.

    The addresses of a name are tried one after another, each for its share of what is left.

    :param within: seconds for all of it.
    :param context: asked only for an ``https`` origin.
    :raises ConnectFailed: no address took the connection in time.
    """
    failure: OSError | None = None
    deadline = anyio.current_time() + within
    with anyio.move_on_after(within):
        tls = await context() if origin.scheme == "https" else None
        try:
            targets = await _resolve(origin)
        except OSError as error:
            raise _failed(origin, error) from error
        for index, (family, address) in enumerate(targets):
            share = (deadline - anyio.current_time()) / (len(targets) - index)
            with anyio.move_on_after(share):
                try:
                    sock = await _connect(family, address)
                    return sock if tls is None else await _wrap(sock, origin, tls)
                except OSError as error:
                    logger.info("%s: no connection to %s: %s", origin.label, address, error)
                    failure = error
    raise _failed(origin, failure or TimeoutError(f"no answer in {within:g} s")) from failure


def _failed(origin: Origin, error: OSError) -> ConnectFailed:
    return ConnectFailed(
        f"{origin.label} cannot be reached: {error.strerror or error}", retry_after=1
    )


async def _resolve(origin: Origin) -> Sequence[tuple[socket.AddressFamily, _Address]]:
    if origin.uds is not None:
        await anyio.lowlevel.checkpoint()
        return [(socket.AF_UNIX, origin.uds)]
    with suppress(ValueError):
        address = ipaddress.ip_address(origin.host)
        await anyio.lowlevel.checkpoint()
        family = socket.AF_INET if address.version == 4 else socket.AF_INET6
        return [(family, (origin.host, origin.port))]
    found = await anyio.getaddrinfo(origin.host, origin.port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys((family, address) for family, _, _, _, address in found))


async def _connect(family: socket.AddressFamily, address: _Address) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.settimeout(0)
        if family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            sock.connect(address)
        except BlockingIOError:
            if family == socket.AF_UNIX:
                # EAGAIN, and no event says when the backlog has room again.
                raise OSError("the socket's backlog is full") from None
            await anyio.wait_writable(sock)
            number = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if number:
                raise OSError(number, os.strerror(number)) from None
    except BaseException:
        anyio.notify_closing(sock)
        sock.close()
        raise
    return sock


async def _wrap(sock: socket.socket, origin: Origin, context: ssl.SSLContext) -> ssl.SSLSocket:
    """Put TLS on ``sock``, which is used up."""
    try:
        secure = context.wrap_socket(
            sock,
            server_hostname=origin.host,
            do_handshake_on_connect=False,
            # A body must not seem to end where somebody has cut the connection.
            suppress_ragged_eofs=False,
        )
    except BaseException:
        reset(sock)
        raise
    try:
        await handshake(secure, None)
    except ClientGone as error:
        reset(secure)
        raise ConnectionError(str(error)) from error
    except BaseException:
        reset(secure)
        raise
    return secure
