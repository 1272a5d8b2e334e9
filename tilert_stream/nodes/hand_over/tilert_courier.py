"""Parcels → TileRT's stock decode servers, in TileRT's own dialect: one connection a request.

In: parcels that have no grant. Out: rows at the addresses that a server's hello names. A server has
one receive buffer: parcels to it go one after another.
"""

from __future__ import annotations

from base64 import b64decode
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import anyio

from tilert_transports.abc import Region
from tilert_transports.control.errors import HandOffFailed, HandshakeRefused
from tilert_transports.control.tilert_pd import SENDER_RANK, TilertRequest, normalise_rid
from tilert_transports.control.tilert_pd_prefill import TilertSender, hand_off
from tilert_transports.errors import TransportError
from tilert_transports.nixl import NixlTransport
from tilert_transports.nixl_memory import Location
from tilert_transports.plan import Plan

from ..tilert_port import TilertLayout

if TYPE_CHECKING:
    from tilert_engine.layouts.abc import KVLayout, Row
    from tilert_transports.abc import Peer, Transport
    from tilert_transports.control.tilert_pd import TilertHello

    from .parcel import Parcel

__all__ = ("TilertCourier",)


class _Target(NamedTuple):
    """A server's receive buffer: its agent, and the addresses from its first plane to its last."""

    metadata: str
    place: Location


@dataclass(slots=True)
class _Server:
    """One decode server, and how its memory was last reached."""

    lock: anyio.Lock = field(default_factory=anyio.Lock)
    target: _Target | None = None
    peer: Peer | None = None


class TilertCourier:
    """Hands over to decode servers that know no grants.

    :param region: the staging memory.
    :param timeout: seconds that connecting, a write or a drain may take.
    """

    def __init__(
        self, transport: Transport, region: Region, layout: KVLayout, *, timeout: float
    ) -> None:
        self._transport = transport
        self._region = region
        self._layout = layout
        self._timeout = timeout
        self._servers: dict[tuple[str, int], _Server] = {}

    def check(self) -> tuple[TilertLayout, NixlTransport]:
        """What the dialect needs of this node.

        :raises HandOffFailed: it has another transport, or another kind of model.
        """
        layout, transport = self._layout, self._transport
        if not isinstance(layout, TilertLayout):
            raise HandOffFailed(
                "the request came without a grant (tilert_request, tilert_incarnation,"
                " tilert_generation in kv_transfer_params), as for a decode server of TileRT's;"
                f" those take mla_nsa alone (GLM-5, DeepSeek-V3.2), and this model's KV layout is"
                f" {layout.name!r}: send it through this project's router to a decode node of ours"
            )
        if not isinstance(transport, NixlTransport):
            raise HandOffFailed(
                "the request came without a grant (tilert_request, tilert_incarnation,"
                " tilert_generation in kv_transfer_params), as for a decode server of TileRT's;"
                f" transport is {transport.name!r}, and such a server is handed to over nixl: set"
                " --transport nixl (tilert_transport in kv_connector_extra_config)"
            )
        return layout, transport

    async def deliver(self, parcel: Parcel) -> None:
        """Hand one KV cache over.

        Nothing reads the parcel any more when it returns.

        :raises ~tilert_stream.errors.TilertStreamError: it did not get there.
        """
        layout, transport = self.check()
        to = parcel.destination
        server = self._servers.setdefault((to.host, to.port), _Server())
        request = TilertRequest(
            normalise_rid(parcel.request_id), SENDER_RANK, parcel.seq_len, parcel.last_token
        )
        sender = TilertSender(request, layout.version, transport.name)

        async def write(hello: TilertHello) -> None:
            target, rows = _aim(self._layout.sized(hello.max_seq_len), hello, parcel.seq_len)
            await transport.write(
                await self._reach(server, transport, target),
                self._region.part(parcel.offset, parcel.nbytes),
                Region(0, 0, target.place.nbytes),
                Plan(rows),
                deadline=anyio.current_time() + self._timeout,
            )

        async def drain() -> bool:
            peer = server.peer
            return peer is None or await transport.drain(peer, timeout=self._timeout)

        async with server.lock:
            try:
                await hand_off(
                    to.host, to.port, sender, write, drain, connect_timeout=self._timeout
                )
            except TransportError:
                # It may have restarted under the same address.
                await self._leave(server, transport)
                raise

    async def _reach(self, server: _Server, transport: NixlTransport, target: _Target) -> Peer:
        if server.peer is not None and server.target == target:
            return server.peer
        if server.target is not None and server.target.metadata != target.metadata:
            await self._leave(server, transport)  # NIXL knows one agent of a name at a time
        before = server.peer
        metadata = b64decode(target.metadata)
        peer = await transport.reach(metadata, target.place, timeout=self._timeout)
        server.target, server.peer = target, peer
        if before is not None:
            await transport.disconnect(before)
        return peer

    async def _leave(self, server: _Server, transport: NixlTransport) -> None:
        peer, server.peer, server.target = server.peer, None, None
        if peer is not None:
            await transport.disconnect(peer)


def _aim(layout: KVLayout, hello: TilertHello, seq_len: int) -> tuple[_Target, list[Row]]:
    """Where a server wants each row: its planes may lie apart, each is in one piece.

    :param layout: with the rows of the server's buffer.
    """
    assert isinstance(layout, TilertLayout)  # noqa: S101 - checked before anything was said
    ours = sorted(layout.bases().items(), key=lambda item: item[1])
    missing = [name for name, _ in ours if name not in hello.bases]
    if missing:
        raise HandshakeRefused(
            f"the TileRT decode server's hello lacks {', '.join(missing)}: it has"
            f" {', '.join(hello.bases) or 'none'}; serve the same --model on both sides"
        )
    begins = [base for _, base in ours]
    theirs = [hello.bases[name] for name, _ in ours]
    ends = [*begins[1:], layout.region_bytes]
    start = min(theirs)
    end = max(base + end - begin for base, begin, end in zip(theirs, begins, ends, strict=True))
    rows: list[Row] = []
    for source, target, nbytes in layout.plan(seq_len, SENDER_RANK):
        plane = bisect_right(begins, target) - 1
        rows.append((source, target - begins[plane] + theirs[plane] - start, nbytes))
    device = int(hello.card["nixl_dev"])
    place = Location(start, end - start, device)
    return _Target(str(hello.card["nixl_meta"]), place), rows
