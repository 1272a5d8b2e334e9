"""The receiving half of a decode node: a transport, landing regions and a control port."""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio

from tilert_engine.layouts.abc import KVLayout
from tilert_stream.nodes.hand_over.destination import Destination, Grant
from tilert_transports.abc import Region, Transport
from tilert_transports.control.auth import ClusterKey
from tilert_transports.control.hello import NONCE_BYTES, Hello
from tilert_transports.control.landing import Landing
from tilert_transports.control.prompt import PromptIdentity
from tilert_transports.control.regions import LandingRegion, RegionPool
from tilert_transports.control.server import ControlServer

SLOTS = 1
REGIONS = SLOTS + 2


@dataclass
class DecodeSide:
    transport: Transport
    layout: KVLayout
    server: ControlServer
    port: int
    regions: Region
    incarnation: str

    def reserve(
        self, request: str, max_tokens: int, prompt: PromptIdentity | None = None
    ) -> tuple[Landing, Destination]:
        """As a router does, and what it then tells prefill."""
        landing = self.server.reserve(request, max_tokens, prompt)
        grant = Grant(request, landing.granted.incarnation, landing.granted.generation)
        return landing, Destination("127.0.0.1", self.port, grant)

    def bytes_of(self, region: LandingRegion) -> memoryview:
        return self.transport.view(self.regions)[region.offset : region.offset + region.nbytes]


@asynccontextmanager
async def decode_side(
    transport: Transport,
    layout: KVLayout,
    *,
    key: ClusterKey | None = None,
    incarnation: str = "d-1",
    port: int | None = None,
) -> AsyncGenerator[DecodeSide]:
    memory = await transport.allocate(REGIONS * layout.region_bytes)
    size = layout.region_bytes
    pool = RegionPool([LandingRegion(memory.id, i * size, size) for i in range(REGIONS)], SLOTS)
    hello = Hello(
        node="decode-0",
        role="decode",
        incarnation=incarnation,
        layout=layout.describe(),
        max_seq_len=layout.max_seq_len,
        transport=transport.name,
        card=transport.card(),
        nonce=bytes(NONCE_BYTES),
    )
    server = ControlServer(hello, pool, sender_ranks=layout.sender_ranks, key=key)
    listener = socket.create_server(("127.0.0.1", port or 0))
    listener.setblocking(False)
    async with anyio.create_task_group() as tasks:
        await tasks.start(server.serve, [listener])
        yield DecodeSide(transport, layout, server, listener.getsockname()[1], memory, incarnation)
        tasks.cancel_scope.cancel()
    await transport.aclose()
