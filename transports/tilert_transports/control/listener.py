"""Listening sockets in, one dialogue a connection out: a bad connection ends alone."""

from __future__ import annotations

import errno
import logging
import socket
from typing import TYPE_CHECKING, Final, TypeAlias

import anyio
import anyio.abc
from anyio import TASK_STATUS_IGNORED

from tilert_stream.errors import ConfigError

from .errors import ControlError, PeerLost
from .link import Link

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .link import Dialogue, Post
    from .settings import ControlSettings

__all__ = ("DialogueServer", "MakeDialogue", "bind")

MakeDialogue: TypeAlias = "Callable[[int, Post], Dialogue]"
"""Makes the dialogue of a new connection, given its number and where to post."""

logger = logging.getLogger(__name__)

_BACKLOG: Final = 256
_EXHAUSTED: Final = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_RETRY_SECONDS: Final = 1.0


async def bind(host: str, port: int) -> list[socket.socket]:
    """Bind and listen. ``"::"`` and ``""`` take in IPv6 and IPv4; a name, all its addresses.

    :param port: 0: any free one, the same for all addresses.
    :raises ~tilert_stream.errors.ConfigError: an address is taken, not ours, or unknown.
    """
    everywhere = host in ("", "::") and socket.has_dualstack_ipv6()
    bound: list[socket.socket] = []
    try:
        found = await anyio.getaddrinfo(
            "::" if everywhere else host or None,
            port,
            type=socket.SOCK_STREAM,
            flags=socket.AI_PASSIVE,
        )
        for family, _, _, _, address in found:
            sock = socket.socket(family, socket.SOCK_STREAM)
            bound.append(sock)
            sock.settimeout(0)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not everywhere)
            sock.bind((address[0], port, *address[2:]))
            sock.listen(_BACKLOG)
            port = sock.getsockname()[1]
    except OSError as error:
        for sock in bound:
            sock.close()
        raise ConfigError(
            f"cannot listen on {host or '::'}, control port {port}: {error.strerror or error}; stop"
            " what listens there, or choose another address or --ctrl-port.",
            param="ctrl_port",
        ) from error
    return bound


class DialogueServer:
    """Accepts connections and runs a dialogue on each, until it is cancelled."""

    def __init__(self, make: MakeDialogue, settings: ControlSettings) -> None:
        self._make = make
        self._settings = settings
        self._number = 0
        self._links: dict[int, Link] = {}
        self._accepted = set[socket.socket]()
        self._left = anyio.Event()

    @property
    def connections(self) -> int:
        """Open now."""
        return len(self._links)

    async def serve(
        self,
        listeners: Iterable[socket.socket],
        *,
        task_status: anyio.abc.TaskStatus[None] = TASK_STATUS_IGNORED,
    ) -> None:
        """Serve until cancelled; the listeners are closed then."""
        listening = list(listeners)
        try:
            async with anyio.create_task_group() as tasks:
                for listener in listening:
                    tasks.start_soon(self._accept, listener, tasks)
                task_status.started()
        finally:
            # A task that is cancelled before its first step closes nothing.
            for sock in (*listening, *self._accepted):
                sock.close()

    async def _accept(self, listener: socket.socket, tasks: anyio.abc.TaskGroup) -> None:
        while True:
            await anyio.wait_readable(listener)
            try:
                sock, address = listener.accept()
            except BlockingIOError:
                continue
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    logger.warning("cannot accept: %s; waiting for a connection to close", error)
                    # Descriptors may also become free elsewhere, which no event tells.
                    with anyio.move_on_after(_RETRY_SECONDS):
                        await self._left.wait()
                else:
                    logger.info("a connection broke while it was accepted: %s", error)
                continue
            name = f"{address[0]} port {address[1]}"
            if len(self._links) >= self._settings.max_connections:
                logger.warning(
                    "control connection from %s closed: there are %d already (max_connections)",
                    name,
                    len(self._links),
                )
                sock.close()
                continue
            sock.settimeout(0)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._accepted.add(sock)
            self._number += 1
            self._links[self._number] = Link(self._settings)
            tasks.start_soon(self._run, self._number, sock, name)

    async def _run(self, number: int, sock: socket.socket, name: str) -> None:
        link = self._links[number]
        try:
            stream = await anyio.abc.SocketStream.from_socket(sock)
            self._accepted.discard(sock)
            error = await link.run(stream, self._make(number, link.post))
            _log(name, error)
        except Exception:
            # A fault of ours that one peer's bytes have found must not end the others.
            logger.exception("serving the control connection from %s failed", name)
        finally:
            if sock in self._accepted:
                self._accepted.remove(sock)
                sock.close()
            del self._links[number]
            self._left.set()
            self._left = anyio.Event()


def _log(name: str, error: ControlError | None) -> None:
    """Say why a connection ended: loudly only if its peer is at fault."""
    if error is None:
        logger.debug("control connection from %s closed", name)
    elif isinstance(error, PeerLost):
        logger.info("control connection from %s lost: %s", name, error.message)
    else:
        logger.warning("control connection from %s closed: %s", name, error.message)
