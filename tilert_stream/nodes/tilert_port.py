"""Where TileRT's stock prefill connectors hand KV caches over: transport, regions, control port.

Entered once by the node's app; left, its port is closed and its memory is gone.
"""

from __future__ import annotations

import socket
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable
from uuid import uuid4

from anyio import AsyncContextManagerMixin, CancelScope, create_task_group

from tilert_stream.errors import ConfigError, NotReady
from tilert_transports.control.errors import HandOffFailed
from tilert_transports.control.listener import bind
from tilert_transports.control.regions import RegionPool
from tilert_transports.control.tilert_pd import TilertHello
from tilert_transports.control.tilert_pd_card import tilert_place
from tilert_transports.control.tilert_pd_server import TilertServer
from tilert_transports.registry import load

from .landing_memory import LandingMemory, transport_maker

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from contextlib import AbstractContextManager

    from tilert_engine.layouts.abc import KVLayout, Landed
    from tilert_transports.abc import Transport
    from tilert_transports.control.regions import LandingRegion
    from tilert_transports.control.reservations import ReservationStatistics
    from tilert_transports.control.tilert_pd_decode import Arrival

__all__ = ("TilertLayout", "TilertPort")

TRANSPORTS: Final = ("nixl", "mooncake")

_EVERYWHERE: Final = ("", "::", "0.0.0.0")  # noqa: S104 - compared, never bound


@runtime_checkable
class TilertLayout(Protocol):
    """A KV layout that TileRT's dialect has words for."""

    @property
    def version(self) -> int:
        """The layout's number, the only thing that the two sides compare."""
        ...

    def bases(self) -> dict[str, int]:
        """Where planes begin, bytes from a region's beginning, under the hello's names."""
        ...


class TilertPort(AsyncContextManagerMixin):
    """One decode node's side of all hand-offs in TileRT's dialect.

    :param transport: ``nixl`` or ``mooncake``, as the prefill connector's ``tilert_transport``.
    :param slots: decode slots that the regions are for.
    :param regions: landing regions; each open connection of a prefill holds one.
    :param port: 0 takes any free one.
    :param advertise: where Mooncake's peers find this node, if not at ``host``.
    :param timeout: seconds that a transfer may take, and then that its cache waits to be taken.
    :param device: in whose memory KV caches land, such as ``cuda:0``; None: in the host's.
    :param prepare: makes all regions' memory ready for who reads them; entered in a thread before
        anything can land, left before the memory goes.
    :raises ~tilert_stream.errors.ConfigError: the dialect has no such transport or layout.
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
        timeout: float = 120.0,
        advertise: str | None = None,
        device: str | None = None,
        prepare: Callable[[memoryview], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        if transport not in TRANSPORTS:
            raise ConfigError(
                f"transport is {transport!r}; with --pd-dialect tilert-pd it must be"
                f" {' or '.join(TRANSPORTS)}, as the prefill connector's tilert_transport",
                param="transport",
            )
        if not isinstance(layout, TilertLayout):
            raise ConfigError(
                f"the model's KV layout is {layout.name!r}; --pd-dialect tilert-pd carries mla_nsa"
                " alone (GLM-5, DeepSeek-V3.2): leave the option out, or serve such a model",
                param="pd_dialect",
            )
        self._layout = layout
        self._words: TilertLayout = layout
        self._make_transport = transport_maker(transport, host=host)
        if transport == "mooncake":
            # TileRT's senders speak RDMA alone; the peer's protocol must be the same.
            name = advertise or (socket.gethostname() if host in _EVERYWHERE else host)
            self._make_transport = partial(load(transport), host=name, protocol="rdma")
        self._slots = slots
        self._count = regions
        self._host = host
        self._timeout = timeout
        self._device = device
        self._prepare = prepare
        self._memory: LandingMemory | None = None
        self._server: TilertServer | None = None
        self.port = port
        """The control port; once entered, the one that was taken."""

    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[TilertPort]:
        transport = self._make_transport()
        try:
            memory = await LandingMemory.allocate(
                transport, self._layout, self._count, device=self._device
            )
            self._memory = memory
            server = self._server = self._serve(transport, memory)
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

    def _serve(self, transport: Transport, memory: LandingMemory) -> TilertServer:
        place = tilert_place(transport, memory.memory)
        start = memory.memory.offset
        version, bases = self._words.version, self._words.bases()

        def hello(region: LandingRegion) -> TilertHello:
            address = place.address + region.offset - start
            return TilertHello(
                layout_version=version,
                transport=place.transport,
                max_seq_len=self._layout.max_seq_len,
                busy=False,  # a region of its own is free for whoever is greeted
                card=place.card,
                bases={name: address + base for name, base in bases.items()},
            )

        return TilertServer(
            RegionPool(memory.regions, self._slots),
            hello,
            incarnation=uuid4().hex,
            max_seq_len=self._layout.max_seq_len,
            timeout=self._timeout,
        )

    async def arrived(self, rid: str) -> Arrival:
        """Wait for the KV cache of ``rid``; see ``TilertInbox.receive``.

        :raises ~tilert_stream.errors.NotReady: the port has not been entered.
        """
        return await self._open().inbox.receive(rid)

    def discard(self, rid: str) -> bool:
        """Give up the KV cache of ``rid``; see ``TilertInbox.discard``. Nothing once it is left."""
        return self._server is not None and self._server.inbox.discard(rid)

    def decline(self, rid: str, reason: str) -> bool:
        """Fail the request ``rid``; see ``TilertInbox.decline``. Nothing once it is left."""
        if self._server is None:
            return False
        return self._server.inbox.decline(rid, HandOffFailed(f"prefill gave up: {reason}"))

    def statistics(self) -> ReservationStatistics:
        """How many landing regions are in each state.

        :raises ~tilert_stream.errors.NotReady: the port has not been entered.
        """
        return self._open().inbox.reservations.statistics()

    def view(self, region: LandingRegion) -> Landed:
        """A landing region's bytes.

        :raises ~tilert_stream.errors.NotReady: the port has not been entered.
        """
        self._open()
        assert self._memory is not None  # noqa: S101 - an open port has it
        return self._memory.view(region)

    def _open(self) -> TilertServer:
        if self._server is None:
            raise NotReady("the control port is closed: enter the node's lifespan first")
        return self._server
