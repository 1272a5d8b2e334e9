"""The HTTP/1.1 server: an ASGI app and settings in, connections served until a drain.

::

    lifespan startup ─► bind ─► accept ─► readiness off, a delay ─► drain: take in who has
    connected already, stop accepting, close idle connections, let answers in flight end
    ─► cut what is left ─► lifespan shutdown
"""

from __future__ import annotations

import logging
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

import anyio
import anyio.abc

from .connection import Connection
from .ledger import Ledger
from .lifespan import lifespan
from .listener import accept_forever, accept_waiting, address_of, bind, unlink
from .sockets import close
from .tls import server_context, wrap

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Callable, Generator, Sequence

    from starlette.types import ASGIApp

    from .ledger import ServerStatistics
    from .listener import Take
    from .scope import Address
    from .settings import ServerSettings

__all__ = ("Server", "run_until_signalled", "serve")

logger = logging.getLogger("tilert_stream.http")


class Server:
    """Serves ``app`` once.

    :param on_drain: called at the beginning of the drain, before any connection is closed: here
        the app's readiness turns false.
    """

    def __init__(
        self,
        app: ASGIApp,
        settings: ServerSettings,
        *,
        on_drain: Callable[[], None] | None = None,
    ) -> None:
        self._app = app
        self._settings = settings
        self._on_drain = on_drain
        self._tls: ssl.SSLContext | None = None
        self._ledger = Ledger()
        self._leaving = anyio.Event()
        self._drain = anyio.Event()
        self._scope: anyio.CancelScope | None = None
        self._cut = False

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._ledger.members)

    @property
    def draining(self) -> bool:
        """Whether the drain has been asked for; it begins ``drain_delay`` later."""
        return self._leaving.is_set()

    def statistics(self) -> ServerStatistics:
        """Connections and requests: now, and since the server was made."""
        return self._ledger.statistics()

    def drain(self, *, at_once: bool = False) -> None:
        """Stop accepting, let answers in flight end, then let ``serve`` return. Idempotent.

        :param at_once: without ``drain_delay``.
        """
        if not self._leaving.is_set():
            if self._on_drain is not None:
                self._on_drain()
            self._leaving.set()
        if at_once or not self._settings.drain_delay:
            self._begin_drain()

    def _begin_drain(self) -> None:
        if not self._ledger.draining:
            self._ledger.drain()
            self._drain.set()

    def cut(self) -> None:
        """End the drain now: what is still being answered is cut."""
        self.drain(at_once=True)
        self._cut = True
        if self._scope is not None:
            self._scope.cancel()

    async def serve(
        self, *, task_status: anyio.abc.TaskStatus[list[Address]] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Serve until ``drain`` has been called and done its work.

        The started value is the list of bound addresses: (host, port), or (path, None).

        :raises StartupFailed: the app's lifespan refused to start.
        :raises BindFailed: the address cannot be had.
        :raises ~tilert_stream.errors.ConfigError: the certificate cannot be used.
        """
        self._tls = await server_context(self._settings)
        with _without_groups():
            async with lifespan(self._app, self._settings) as state:
                listeners = await bind(self._settings)
                try:
                    await self._serve_on(listeners, state, task_status)
                finally:
                    for listener in listeners:
                        close(listener)

    async def _serve_on(
        self,
        listeners: Sequence[socket.socket],
        state: dict[str, object] | None,
        task_status: anyio.abc.TaskStatus[list[Address]],
    ) -> None:
        try:
            with anyio.CancelScope() as self._scope:
                if self._cut:
                    self._scope.cancel()
                async with anyio.create_task_group() as connections:
                    await self._accept_until_drain(listeners, state, connections, task_status)
                    for listener in listeners:
                        await unlink(listener)
                    with anyio.move_on_after(self._settings.drain_timeout):
                        for listener in listeners:
                            take = self._taker(listener, state, connections)
                            await accept_waiting(listener, self._ledger, self._settings, take)
                            close(listener)
                        await self._ledger.wait_empty()
                    if self.connections:
                        logger.warning("Cutting %d connections still in use.", self.connections)
                    connections.cancel_scope.cancel()
        finally:
            # A task that is cancelled before its first step never closes its own socket.
            for member in tuple(self._ledger.members):
                member.close()

    async def _accept_until_drain(
        self,
        listeners: Sequence[socket.socket],
        state: dict[str, object] | None,
        connections: anyio.abc.TaskGroup,
        task_status: anyio.abc.TaskStatus[list[Address]],
    ) -> None:
        async with anyio.create_task_group() as acceptors:
            for listener in listeners:
                acceptors.start_soon(
                    accept_forever,
                    listener,
                    self._ledger,
                    self._settings.max_connections,
                    self._taker(listener, state, connections),
                )
            task_status.started([address_of(listener) for listener in listeners])
            await self._leaving.wait()
            with anyio.move_on_after(self._settings.drain_delay):
                await self._drain.wait()
            self._begin_drain()
            acceptors.cancel_scope.cancel()

    def _taker(
        self,
        listener: socket.socket,
        state: dict[str, object] | None,
        connections: anyio.abc.TaskGroup,
    ) -> Take:
        address = address_of(listener)

        def take(sock: socket.socket, client: Address | None) -> None:
            if self._tls is not None:
                sock = wrap(sock, self._tls)
            connection = Connection(
                sock, client, address, self._app, self._settings, self._ledger, state
            )
            connections.start_soon(connection.run)

        return take


async def serve(
    app: ASGIApp,
    settings: ServerSettings,
    *,
    task_status: anyio.abc.TaskStatus[list[Address]] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Serve ``app`` until cancelled; ``Server`` has the same with a drain.

    :raises StartupFailed: the app's lifespan refused to start.
    :raises BindFailed: the address cannot be had.
    """
    await Server(app, settings).serve(task_status=task_status)


async def run_until_signalled(
    server: Server, *, task_status: anyio.abc.TaskStatus[list[Address]] = anyio.TASK_STATUS_IGNORED
) -> None:
    """Serve until SIGTERM or SIGINT: the first drains, a second one cuts.

    Runs in the main thread only, where signals arrive.

    :raises StartupFailed: the app's lifespan refused to start.
    :raises BindFailed: the address cannot be had.
    """
    with _without_groups():
        async with anyio.create_task_group() as group:
            await group.start(_heed_signals, server)
            await server.serve(task_status=task_status)
            group.cancel_scope.cancel()


async def _heed_signals(
    server: Server, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED
) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        task_status.started()
        async for number in signals:
            name = signal.Signals(number).name
            if server.draining:
                logger.warning("%s again: cutting %d connections.", name, server.connections)
                server.cut()
            else:
                logger.info("%s: draining %d connections.", name, server.connections)
                server.drain()


@contextmanager
def _without_groups() -> Generator[None, None, None]:
    """Raise an error that came alone as itself: the task groups in here are nobody's business."""
    failure: Exception | None = None
    try:
        yield
    except ExceptionGroup as group:
        failure = _alone(group)
    if failure is not None:
        raise failure


def _alone(group: ExceptionGroup[Exception]) -> Exception:
    first, *others = group.exceptions
    if others:
        return group
    if isinstance(first, ExceptionGroup):
        return _alone(cast("ExceptionGroup[Exception]", first))
    return first
