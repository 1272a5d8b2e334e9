"""TLS on a non-blocking socket: a certificate in, accepted sockets wrapped and shaken hands with.

``ssl.SSLSocket`` is a socket, so that readers and writers need not know of it but for two things:
it asks to be tried again with errors of its own, and its end is told by a record, ``close_notify``,
before the FIN.
"""

from __future__ import annotations

import socket
import ssl
from contextlib import suppress
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from ..errors import ConfigError
from .errors import ClientGone

if TYPE_CHECKING:
    from .settings import ServerSettings

__all__ = ("handshake", "say_goodbye", "server_context", "wrap")


async def server_context(settings: ServerSettings) -> ssl.SSLContext | None:
    """Read the certificate that ``settings`` name; None: no TLS.

    :raises ~tilert_stream.errors.ConfigError: certificate and key cannot be read, or do not fit.
    """
    if settings.ssl_certfile is None:
        return None
    return await anyio.to_thread.run_sync(_load, settings.ssl_certfile, settings.ssl_keyfile)


def _load(certfile: str, keyfile: str | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Renegotiation would make a write wait for a read.
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    try:
        # Without a password, an encrypted key would be asked for on the terminal.
        context.load_cert_chain(certfile, keyfile, password="")
    except OSError as error:
        raise ConfigError(
            f"the certificate {certfile} with the key {keyfile or certfile} cannot be used:"
            f" {error.strerror or error}; both must be PEM files that belong together, the key"
            " without a passphrase.",
            param="ssl_certfile",
        ) from error
    return context


def wrap(sock: socket.socket, context: ssl.SSLContext) -> ssl.SSLSocket:
    """Put TLS on an accepted socket, which is used up; nothing is sent yet.

    :raises OSError: the client has left already.
    """
    return context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)


async def handshake(
    sock: socket.socket, limit: float | None, silence: anyio.CancelScope | None = None
) -> None:
    """Agree on keys, within ``limit`` seconds; nothing for a socket without TLS.

    :param silence: of a server: entered until the client's first byte is there; cancelled, nobody
        begins.
    :raises ClientGone: the client left, does not speak TLS, or took too long.
    """
    if not isinstance(sock, ssl.SSLSocket):
        return
    with anyio.move_on_after(limit):
        if silence is not None:
            with silence:
                await anyio.wait_readable(sock)
            if silence.cancelled_caught and not _begun(sock):
                raise ClientGone("no TLS handshake had begun when the server drained")
        while True:
            try:
                sock.do_handshake()
            except ssl.SSLWantReadError:
                await anyio.wait_readable(sock)
            except ssl.SSLWantWriteError:
                await anyio.wait_writable(sock)
            except OSError as error:
                raise ClientGone(f"the TLS handshake failed: {error}") from error
            else:
                return
    raise ClientGone(f"the TLS handshake was not complete after {limit} s")


def _begun(sock: ssl.SSLSocket) -> bool:
    with suppress(OSError):
        return bool(socket.socket.recv(sock, 1, socket.MSG_PEEK))
    return False


def say_goodbye(sock: socket.socket) -> None:
    """Send ``close_notify``, without waiting for the client's; nothing for a socket without TLS."""
    if isinstance(sock, ssl.SSLSocket):
        # It waits for the client's own, or there was no handshake, or nobody is there any more.
        with suppress(OSError):
            sock.unwrap()
