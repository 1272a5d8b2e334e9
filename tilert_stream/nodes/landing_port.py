"""Where a decode node's KV caches come in: transport, landing regions and control port as one.

Entered once by the node's app; left, its port is closed and its memory is gone.
"""

from __future__ import annotations

import socket
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from anyio import AsyncContextManagerMixin, CancelScope, create_task_group, to_thread

from tilert_stream.errors import ConfigError, NotReady
from tilert_transports.abc import Region
from tilert_transports.control.hello import NONCE_BYTES, Hello
from tilert_transports.control.listener import bind
from tilert_transports.control.regions import LandingRegion, RegionPool
from tilert_transports.control.reservations import ReservationSettings
from tilert_transports.control.server import ControlServer
from tilert_transports.registry import load

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from contextlib import AbstractContextManager

    from tilert_engine.layouts.abc import KVLayout
    from tilert_transports.abc import Transport
    from tilert_transports.control.auth import ClusterKey
    from tilert_transports.control.landing import Landing
    from tilert_transports.control.prompt import PromptIdentity

__all__ = ("LandingPort", "transport_maker")

PAGE: Final = 4096
"""Bytes. Each landing region begins on a page of its own."""


def transport_maker(
    name: str, *, host: str, advertise: str | None = None
) -> Callable[[], Transport]:
    """Makes transports by name; those that listen, listen on ``host``.

    :param advertise: where peers find it, if not there.

    :raises ~tilert_transports.errors.TransportNotFound: no such name; the known ones are listed.
    :raises ~tilert_transports.errors.TransportUnavailable: its library is missing.
    """
    factory = load(name)
    if name not in ("auto", "tcp"):
        return factory
    return partial(factory, host=_address(host), advertise=advertise)


def _address(host: str) -> str:
    """The first address of ``host``: a transport listens on one.

    :raises ~tilert_stream.errors.ConfigError: it has none.
    """
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ConfigError(f"host is {host!r}: {error.strerror or error}.", param="host") from error
    return str(found[0][4][0])


class LandingPort(AsyncContextManagerMixin):
    """One decode node's side of all hand-offs.

    :param transport: its registered name.
    :param slots: decode slots that the regions are for.
    :param regions: landing regions.
    :param port: 0 takes any free one.
    :param key: the cluster's; None takes everybody in.
    :param advertise: where prefill nodes find the transport, if not at ``host``.
    :param ttl: seconds that a reservation lives without being renewed.
    :param prepare: makes all regions' memory ready for who reads them; entered in a thread before
        anything can land, left before the memory goes.
    """

    def __init__(
        self,
        layout: KVLayout,
        *,
        transport: str,
        slots: int,
        regions: int,
        host: str,
        port: int,
        key: ClusterKey | None = None,
        ttl: float = 30.0,
        advertise: str | None = None,
        prepare: Callable[[memoryview], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._layout = layout
        self._make_transport = transport_maker(transport, host=host, advertise=advertise)
        self._slots = slots
        self._count = regions
        self._host = host
        self._key = key
        self._settings = ReservationSettings(ttl=ttl)
        self._prepare = prepare
        self._transport: Transport | None = None
        self._server: ControlServer | None = None
        self.port = port
        """The control port; once entered, the one that was taken."""

    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[LandingPort]:
        transport = self._transport = self._make_transport()
        try:
            stride = -(-self._layout.region_bytes // PAGE) * PAGE
            memory = await transport.allocate(stride * self._count)
            async with self._prepared(transport.view(memory)):
                server = self._server = ControlServer(
                    self._hello(transport),
                    RegionPool(self._parts(memory, stride), self._slots),
                    sender_ranks=self._layout.sender_ranks,
                    key=self._key,
                    reservation_settings=self._settings,
                )
                listeners = await bind(self._host, self.port)
                self.port = listeners[0].getsockname()[1]
                async with create_task_group() as tasks:
                    await tasks.start(server.serve, listeners)
                    yield self
                    tasks.cancel_scope.cancel()
        finally:
            self._server = self._transport = None
            with CancelScope(shield=True):
                await transport.aclose()

    @asynccontextmanager
    async def _prepared(self, memory: memoryview) -> AsyncGenerator[None]:
        context = self._prepare(memory)
        await to_thread.run_sync(context.__enter__)
        try:
            yield
        finally:
            with CancelScope(shield=True):
                await to_thread.run_sync(context.__exit__, None, None, None)

    def _parts(self, memory: Region, stride: int) -> list[LandingRegion]:
        return [
            LandingRegion(memory.id, memory.offset + stride * index, self._layout.region_bytes)
            for index in range(self._count)
        ]

    def _hello(self, transport: Transport) -> Hello:
        return Hello(
            node=socket.gethostname(),
            role="decode",
            incarnation=uuid4().hex,
            layout=self._layout.describe(),
            max_seq_len=self._layout.max_seq_len,
            transport=transport.name,
            card=transport.card(),
            nonce=bytes(NONCE_BYTES),
        )

    def reserve(
        self, request: str, max_tokens: int, prompt: PromptIdentity | None = None
    ) -> Landing:
        """Hold a landing region for ``request``; see ``Landings.reserve``.

        :raises ~tilert_stream.errors.NotReady: the port has not been entered.
        """
        if self._server is None:
            raise NotReady("the control port is closed: enter the node's lifespan first")
        return self._server.reserve(request, max_tokens, prompt)

    def view(self, region: LandingRegion) -> memoryview:
        """A landing region's bytes.

        :raises ~tilert_stream.errors.NotReady: the port has not been entered.
        """
        if self._transport is None:
            raise NotReady("the control port is closed: enter the node's lifespan first")
        return self._transport.view(Region(region.id, region.offset, region.nbytes))
