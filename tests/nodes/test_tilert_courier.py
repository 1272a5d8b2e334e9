"""A courier before a decode server of TileRT's: no engine, real NIXL agents, host memory."""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from random import Random

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from tests.free_ports import free_ports
from tilert_engine.layouts.mla_nsa import MlaNsaLayout
from tilert_engine.layouts.mla_nsa_model import MlaNsaModel
from tilert_engine.layouts.scripted import ScriptedLayout
from tilert_stream.errors import Busy
from tilert_stream.nodes.hand_over.courier import NodeCourier, open_courier
from tilert_stream.nodes.hand_over.destination import Destination
from tilert_stream.nodes.hand_over.parcel import Parcel
from tilert_stream.testing.tilert_sender import PAGE_BYTES, ROPE_BYTES, KVSections
from tilert_stream.testing.tilert_server import NixlReceiver, Received, StockServer
from tilert_transports.control.errors import HandOffFailed, HandshakeRefused, PeerLost
from tilert_transports.errors import HandshakeMismatch, TransportError
from tilert_transports.nixl_binding import installed
from tilert_transports.registry import load, make

needs_nixl = pytest.mark.skipif(not installed(), reason="no NIXL wheel")
if installed():
    load("nixl")  # before any event loop runs: importing reads files

LAYERS = 3
ROWS = 128
MODEL = MlaNsaModel("three", LAYERS - 1, 1, 11)
LAYOUT = MlaNsaLayout(model=MODEL, dtype="fp8_ds_mla", max_seq_len=256)
names = count(1)


@asynccontextmanager
async def stock_server(
    *,
    name: str | None = None,
    version: int = LAYOUT.version,
    rows: int = ROWS,
    port: int = 0,
    receiver: Callable[[int], NixlReceiver] | None = None,
) -> AsyncGenerator[StockServer]:
    # In a thread: NIXL reads files.
    make_it = partial(
        StockServer,
        receiver or partial(NixlReceiver, name or f"stock-server:{next(names)}"),
        version,
        layers=LAYERS,
        row_bytes=LAYOUT.planes[0].row_bytes,
        rows=rows,
        decode=lambda _received, first, _count: [first],
        gap=640,
        port=port,
    )
    made = await anyio.to_thread.run_sync(make_it)
    try:
        yield made
    finally:
        made.close()


@asynccontextmanager
async def courier_of(
    transport: str = "nixl", layout: MlaNsaLayout | ScriptedLayout = LAYOUT
) -> AsyncGenerator[NodeCourier]:
    async with open_courier(
        make(transport), layout, rank=0, staging_bytes=1 << 20, send_timeout=20
    ) as courier:
        yield courier


def staged(courier: NodeCourier, server: StockServer, tokens: int, seed: int) -> Parcel:
    """A prompt of noise."""
    offset, nbytes = 512, LAYOUT.staging_bytes(tokens)
    courier.staging[offset : offset + nbytes] = Random(seed).randbytes(nbytes)
    to = Destination("127.0.0.1", server.port)
    return Parcel(f"cmpl-{seed:x}-0-0123abcd", to, tokens, seed, "d" * 16, offset, nbytes)


def sections(parcel: Parcel, staging: memoryview) -> KVSections:
    """The staged bytes, plane after plane, cut into layers."""
    rest = bytes(staging[parcel.offset : parcel.offset + parcel.nbytes])
    pages = -(-parcel.seq_len // 64)
    planes: list[list[bytes]] = []
    for size in (parcel.seq_len * 528, parcel.seq_len * ROPE_BYTES, pages * PAGE_BYTES):
        planes.append([rest[layer * size : (layer + 1) * size] for layer in range(LAYERS)])
        rest = rest[LAYERS * size :]
    return KVSections(*planes)


async def has_come(server: StockServer, rid: str) -> Received:
    while rid not in server.arrived:
        await anyio.lowlevel.checkpoint()
    return server.arrived[rid]


@needs_nixl
async def test_each_plane_lands_where_the_hello_says() -> None:
    async with stock_server() as server, courier_of() as courier:
        for seed, tokens in ((0xA1, 100), (0xA2, 1), (0xA3, ROWS)):
            parcel = staged(courier, server, tokens, seed)
            await courier.deliver(parcel)
            received = await has_come(server, f"{seed:x}")
            assert received == Received(tokens, seed, sections(parcel, courier.staging))


@needs_nixl
async def test_a_server_that_has_restarted_under_the_same_names_is_reached_anew() -> None:
    async with courier_of() as courier:
        port = 0
        for seed in (0xB1, 0xB2):
            async with stock_server(name="stock-server:again", port=port) as server:
                port = server.port
                parcel = staged(courier, server, 70, seed)
                await courier.deliver(parcel)
                received = await has_come(server, f"{seed:x}")
                assert received.sections == sections(parcel, courier.staging)


@needs_nixl
async def test_what_does_not_fit_is_refused_before_anything_is_written() -> None:
    async with courier_of() as courier:
        async with stock_server(version=10) as server:
            with pytest.raises(HandshakeRefused, match=r"layout_version.*10 \(GLM-5 with"):
                await courier.deliver(staged(courier, server, 70, 0xC1))
            assert server.requests == []
        async with stock_server() as server:
            with pytest.raises(HandshakeRefused, match="a prompt of 129 tokens"):
                await courier.deliver(staged(courier, server, ROWS + 1, 0xC2))
            assert server.requests == []


@needs_nixl
async def test_a_busy_server_is_not_written_to() -> None:
    async with stock_server() as server:
        async with courier_of() as courier:
            with socket.create_connection(("127.0.0.1", server.port)) as other:
                other.recv(4096)
                body = b'{"rid": "x", "rank": 0, "seq_len": 1, "last_prompt_token": 1}'
                other.sendall(len(body).to_bytes(4, "big") + body)
                while not server.busy:
                    await anyio.lowlevel.checkpoint()
                with pytest.raises(Busy):
                    await courier.deliver(staged(courier, server, 70, 0xD1))
        assert [request["rid"] for request in server.requests] == ["x"]


@needs_nixl
async def test_memory_that_the_server_has_not_registered_is_not_written_to() -> None:
    class Elsewhere(NixlReceiver):
        def __init__(self, nbytes: int) -> None:
            super().__init__(f"stock-server:{next(names)}", nbytes)
            self.address += 1 << 40

    async with stock_server(receiver=Elsewhere) as server:
        async with courier_of() as courier:
            with pytest.raises(HandshakeMismatch, match="nothing registered at address"):
                await courier.deliver(staged(courier, server, 70, 0xE1))
        assert server.arrived == {}


@needs_nixl
async def test_metadata_that_is_none_fails_its_request_alone() -> None:
    class Garbled(NixlReceiver):
        def __init__(self, nbytes: int) -> None:
            super().__init__(f"stock-server:{next(names)}", nbytes)

        def card(self) -> dict[str, str | int]:
            return {"nixl_meta": "AAAA", "nixl_dev": 0}

    async with courier_of() as courier:
        async with stock_server(receiver=Garbled) as server:
            with pytest.raises(TransportError, match="NIXL does not take its metadata"):
                await courier.deliver(staged(courier, server, 70, 0xF1))
        async with stock_server() as server:
            await courier.deliver(staged(courier, server, 70, 0xF2))
            await has_come(server, "f2")


@needs_nixl
async def test_nobody_there() -> None:
    async with stock_server() as server:
        pass
    async with courier_of() as courier:
        with pytest.raises(PeerLost, match="no TileRT decode node answers"):
            await courier.deliver(staged(courier, server, 70, 0xAA))
        await courier.refuse("r", Destination("127.0.0.1", server.port), "preempted")


@pytest.mark.parametrize(
    ("named", "said"),
    [(True, ": "), (False, " that it was preempted; the router gave no tilert_http_port")],
)
async def test_a_node_that_cannot_be_told_is_logged(
    named: bool, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody answers at the HTTP port; or the router has named none."""
    caplog.set_level("INFO")
    ctrl, http = free_ports(2)
    to = Destination("127.0.0.1", ctrl, None, http if named else None)
    async with courier_of("memory") as courier:
        await courier.refuse("cmpl-a1-0-0123abcd", to, "it was preempted")
    assert f"request cmpl-a1-0-0123abcd: its decode node cannot be told{said}" in caplog.text


@pytest.mark.parametrize("transport", ["memory", "tcp"])
async def test_another_transport_is_refused_with_the_flag_to_change(transport: str) -> None:
    async with courier_of(transport) as courier:
        to = Destination("127.0.0.1", 1)
        with pytest.raises(HandOffFailed, match=f"transport is '{transport}'.*--transport nixl"):
            await courier.meet(to)


async def test_another_kind_of_model_is_refused() -> None:
    async with courier_of("memory", ScriptedLayout(64)) as courier:
        with pytest.raises(HandOffFailed, match=r"without a grant .* KV layout is 'scripted'"):
            await courier.meet(Destination("127.0.0.1", 1))
