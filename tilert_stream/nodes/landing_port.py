"""Where a decode node's KV caches come in: transport, landing regions and control port as one.

Entered once by the node's app; left, its port is closed and its memory is gone.
"""

from __future__ import annotations

import socket
from contextlib import asynccontextmanager, nullcontext
from typing import TYPE_CHECKING
from uuid import uuid4

from anyio import AsyncContextManagerMixin, CancelScope, create_task_group

from tilert_stream.errors import NotReady
from tilert_transports.control.hello import NONCE_BYTES, Hello
from tilert_transports.control.listener import bind
from tilert_transports.control.regions import RegionPool
from tilert_transports.control.reservations import ReservationSettings
from tilert_transports.control.server import ControlServer

from .landing_memory import LandingMemory, transport_maker

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from contextlib import AbstractContextManager

    from tilert_engine.layouts.abc import KVLayout, Landed
    from tilert_transports.abc import Transport
    from tilert_transports.control.auth import ClusterKey
    from tilert_transports.control.landing import Landing
    from tilert_transports.control.prompt import PromptIdentity
    from tilert_transports.control.regions import LandingRegion

__all__ = ("LandingPort",)


class LandingPort(AsyncContextManagerMixin):
    """One decode node's side of all hand-offs.

    :param transport: its registered name.
    :param slots: decode slots that the regions are for.
    :param regions: landing regions.
    :param port: 0 takes any free one.
    :param key: the cluster's; None takes everybody in.
    :param advertise: where prefill nodes find the transport, if not at ``host``.
    :param ttl: seconds that a reservation lives without being renewed.
    :param device: in whose memory KV caches land, such as ``cuda:0``; None: in the host's.
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
        device: str | None = None,
        prepare: Callable[[memoryview], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._layout = layout
        self._make_transport = transport_maker(transport, host=host, advertise=advertise)
        self._slots = slots
        self._count = regions
        self._host = host
        self._key = key
        self._settings = ReservationSettings(ttl=ttl)
        self._device = device
        self._prepare = prepare
        self._memory: LandingMemory | None = None
        self._server: ControlServer | None = None
        self.port = port
        """The control port; once entered, the one that was taken."""

    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[LandingPort]:
        transport = self._make_transport()
        try:
            memory = await LandingMemory.allocate(
                transport, self._layout, self._count, device=self._device
            )
            self._memory = memory
            pool = RegionPool(memory.regions, self._slots)
            server = self._server = ControlServer(
                self._hello(transport),
                pool,
                sender_ranks=self._layout.sender_ranks,
                key=self._key,
                reservation_settings=self._settings,
            )
            listeners = await bind(self._host, self.port)
            self.port = listeners[0].getsockname()[1]
            async with memory.prepared(self._prepare), create_task_group() as tasks:
                await tasks.start(server.serve, listeners)
                yield self
                tasks.cancel_scope.cancel()
        finally:
            self._server = self._memory = None
            with CancelScope(shield=True):
                await transport.aclose()

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
        self,
        request: str,
        max_tokens: int,
        prompt: PromptIdentity | None = None,
        generation: int | None = None,
    ) -> Landing:
        """Hold a landing region for ``request``; see ``Landings.reserve``.

        :raises ~tilert_stream.errors.NotReady: the port has not been entered.
        """
        if self._server is None:
            raise NotReady("the control port is closed: enter the node's lifespan first")
        return self._server.reserve(request, max_tokens, prompt, generation=generation)

    def refuse(self, generation: int) -> None:
        """Turn away whoever comes for a grant that a router has named and will not be given."""
        if self._server is not None:
            self._server.refuse(generation)

    def view(self, region: LandingRegion) -> Landed:
        """A landing region's bytes.

        :raises ~tilert_stream.errors.NotReady: the port has not been entered.
        """
        if self._memory is None:
            raise NotReady("the control port is closed: enter the node's lifespan first")
        return self._memory.view(region)
