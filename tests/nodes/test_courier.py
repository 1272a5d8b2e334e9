"""A courier against a real control port, over real transports: no decode engine, no vLLM."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from hashlib import blake2b
from typing import ClassVar

import anyio
import pytest

from tests.nodes.decode_side import REGIONS, DecodeSide, decode_side
from tilert_engine.layouts.abc import Row
from tilert_engine.layouts.gqa import GqaLayout
from tilert_engine.layouts.scripted import ScriptedLayout
from tilert_engine.scripted import ScriptedKV
from tilert_stream.cluster.prompt_digest import prompt_digest
from tilert_stream.nodes.hand_over.courier import NodeCourier, open_courier
from tilert_stream.nodes.hand_over.destination import Destination
from tilert_stream.nodes.hand_over.parcel import Courier, Parcel
from tilert_transports.abc import Peer, Receipt, Region
from tilert_transports.control.auth import ClusterKey
from tilert_transports.control.errors import (
    ControlError,
    GrantGone,
    HandOffFailed,
    HandshakeRefused,
    PeerLost,
    PromptMismatch,
)
from tilert_transports.control.prompt import PromptIdentity
from tilert_transports.errors import PeerLost as TransportLost
from tilert_transports.memory import MemoryTransport
from tilert_transports.plan import Plan
from tilert_transports.registry import make

IDS = (7, 8, 9, 10, 11)
PREFILL = ScriptedLayout(64)
DECODE = ScriptedLayout(32)


@asynccontextmanager
async def both(
    transport: str = "memory",
    *,
    prefill_key: ClusterKey | None = None,
    decode_key: ClusterKey | None = None,
) -> AsyncGenerator[tuple[NodeCourier, DecodeSide]]:
    async with (
        decode_side(make(transport), DECODE, key=decode_key) as node,
        open_courier(
            make(transport), PREFILL, rank=0, staging_bytes=4096, send_timeout=20, key=prefill_key
        ) as courier,
    ):
        yield courier, node


def staged(courier: Courier, destination: Destination, ids: tuple[int, ...] = IDS) -> Parcel:
    offset, nbytes = 512, PREFILL.staging_bytes(len(ids))
    PREFILL.pack(ScriptedKV(ids), courier.staging[offset : offset + nbytes])
    return Parcel("r", destination, len(ids), ids[-1], prompt_digest(ids), offset, nbytes)


@pytest.mark.parametrize("transport", ["memory", "shm", "tcp", "auto"])
async def test_a_cache_lands_as_it_was_staged(transport: str) -> None:
    async with both(transport) as (courier, node):
        landing, destination = node.reserve("a1", 20)
        await courier.deliver(staged(courier, destination))
        landed = await landing.wait()
        assert (landed.request, landed.tokens, landed.last_token) == ("a1", 5, 11)
        assert DECODE.unpack(node.bytes_of(landed.region), 5) == ScriptedKV(IDS)


async def test_one_connection_serves_many_hand_overs() -> None:
    async with both() as (courier, node):
        for request in ("a1", "a2", "a3", "a4", "a5"):
            landing, destination = node.reserve(request, 20)
            await courier.deliver(staged(courier, destination))
            await landing.wait()
            landing.take()
            landing.release("read")
        assert node.server.connections == 1


class CountedLayout(ScriptedLayout):
    """Counts how often it works out what is copied."""

    planned: ClassVar[list[int]] = []

    def plan(self, seq_len: int, rank: int = 0) -> tuple[Row, ...]:
        self.planned.append(seq_len)
        return super().plan(seq_len, rank)

    def sized(self, max_seq_len: int) -> CountedLayout:
        return CountedLayout(max_seq_len)


async def test_what_is_copied_is_worked_out_once_for_each_length() -> None:
    CountedLayout.planned.clear()
    async with (
        decode_side(make("memory"), DECODE) as node,
        open_courier(
            make("memory"), CountedLayout(64), rank=0, staging_bytes=4096, send_timeout=20
        ) as courier,
    ):
        for ids in (IDS, IDS[:3], IDS):
            landing, destination = node.reserve("a1", 20)
            await courier.deliver(staged(courier, destination, ids))
            landed = await landing.wait()
            assert DECODE.unpack(node.bytes_of(landed.region), len(ids)) == ScriptedKV(ids)
            landing.release("read")
    assert CountedLayout.planned == [5, 3]


async def test_two_at_once_share_a_connection_that_is_only_being_made() -> None:
    async with both() as (courier, node):
        landings = [node.reserve(request, 20) for request in ("a1", "a2")]
        async with anyio.create_task_group() as tasks:
            for _, destination in landings:
                tasks.start_soon(courier.deliver, staged(courier, destination))
        for landing, _ in landings:
            await landing.wait()
        assert node.server.connections == 1


async def test_pd_14_the_decode_node_learns_at_once_that_nothing_will_come() -> None:
    async with both() as (courier, node):
        landing, destination = node.reserve("a1", 20)
        await courier.refuse("r", destination, "vLLM ended the request (FINISHED_ABORTED)")
        with pytest.raises(HandOffFailed, match=r"gave up: vLLM ended .*ABORTED"):
            await landing.wait()
        statistics = node.server.landings.statistics()
        assert (statistics.free, statistics.quarantined) == (statistics.regions, 0)


class StuckTransport(MemoryTransport):
    """Its writes begin, and never end."""

    def __init__(self) -> None:
        super().__init__()
        self.writing = anyio.Event()

    async def write(
        self, peer: Peer, source: Region, target: Region, plan: Plan, *, deadline: float
    ) -> Receipt:
        self.writing.set()
        await anyio.sleep_forever()
        raise AssertionError


async def test_pd_14_a_delivery_that_is_cancelled_is_told_and_frees_its_region() -> None:
    stuck = StuckTransport()
    async with (
        decode_side(make("memory"), DECODE) as node,
        open_courier(stuck, PREFILL, rank=0, staging_bytes=4096, send_timeout=20) as courier,
    ):
        landing, destination = node.reserve("a1", 20)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(courier.deliver, staged(courier, destination))
            await stuck.writing.wait()
            tasks.cancel_scope.cancel()
        with pytest.raises(HandOffFailed, match="gave up: the hand-off was cancelled"):
            await landing.wait()
        behind, other = node.reserve("a2", 20)
        await courier.refuse("r", other, "what follows on the connection has been read, too")
        with pytest.raises(HandOffFailed):
            await behind.wait()
        statistics = node.server.landings.statistics()
        assert (statistics.writing, statistics.quarantined) == (0, 0)


async def test_kv_02_a_grant_of_an_earlier_life_is_refused() -> None:
    async with both() as (courier, node):
        landing, destination = node.reserve("a1", 20)
        assert destination.grant is not None
        stale = replace(destination, grant=replace(destination.grant, incarnation="d-0"))
        with pytest.raises(GrantGone, match="has expired, was released, or is another's"):
            await courier.deliver(staged(courier, stale))
        await courier.deliver(staged(courier, destination))
        await landing.wait()


async def test_kv_13_another_prompts_cache_fails_its_request_alone() -> None:
    async with both() as (courier, node):
        ours = PromptIdentity(5, IDS[-1], prompt_digest((*reversed(IDS[:-1]), IDS[-1])))
        for prompt in (ours, replace(ours, last_token=12), replace(ours, tokens=4)):
            landing, destination = node.reserve("a1", 20, prompt)
            parcel = staged(courier, destination)
            with pytest.raises(HandOffFailed, match=f"ends in 11 .digest {parcel.digest}"):
                await courier.deliver(parcel)
            with pytest.raises(PromptMismatch) as caught:
                await landing.wait()
            for digest in (prompt.digest, parcel.digest):
                assert f"digest {digest}" in caught.value.message
            assert node.server.landings.statistics().free == REGIONS
        landing, destination = node.reserve("a1", 20, replace(ours, digest=prompt_digest(IDS)))
        await courier.deliver(staged(courier, destination))
        assert (await landing.wait()).last_token == 11


class UnreachableTransport(MemoryTransport):
    """Its peers do not answer, though their control ports do."""

    async def connect(self, card: bytes, *, timeout: float) -> Peer:  # noqa: ASYNC109 - the contract
        raise TransportLost("nobody answers there")


async def test_pd_14_a_transport_that_cannot_be_reached_is_told_to_the_decode_node() -> None:
    async with (
        decode_side(make("memory"), DECODE) as node,
        open_courier(
            UnreachableTransport(), PREFILL, rank=0, staging_bytes=4096, send_timeout=20
        ) as courier,
    ):
        landing, destination = node.reserve("a1", 20)
        with pytest.raises(TransportLost):
            await courier.deliver(staged(courier, destination))
        with pytest.raises(HandOffFailed, match="gave up: nobody answers there"):
            await landing.wait()


def test_a_digest_is_that_of_little_endian_integers() -> None:
    assert [prompt_digest(ids) for ids in ((), (1,), (2**31 - 1, 0))] == [
        blake2b(data, digest_size=8).hexdigest()
        for data in (b"", b"\1\0\0\0", b"\xff\xff\xff\x7f\0\0\0\0")
    ]


async def test_kv_05_a_prompt_longer_than_was_reserved_fails_both_sides() -> None:
    async with both() as (courier, node):
        landing, destination = node.reserve("a1", 4)
        with pytest.raises(HandOffFailed, match="has 5 tokens; 4 are reserved"):
            await courier.deliver(staged(courier, destination))
        with pytest.raises(HandOffFailed, match="has 5 tokens; 4 are reserved"):
            await landing.wait()


async def test_kv_06_another_layout_is_refused_before_anything_is_written() -> None:
    other = GqaLayout(model="m", layers=1, kv_heads=1, head_dim=2, dtype="float32", max_seq_len=32)
    async with (
        decode_side(make("memory"), other) as node,
        open_courier(
            make("memory"), PREFILL, rank=0, staging_bytes=4096, send_timeout=20
        ) as courier,
    ):
        landing, destination = node.reserve("a1", 20)
        with pytest.raises(HandshakeRefused) as caught:
            await courier.deliver(staged(courier, destination))
        with pytest.raises(HandshakeRefused, match="dtype: ours is float32, theirs int32"):
            await landing.wait()  # no time limit runs: it is told
        assert node.server.landings.statistics().free == REGIONS
        message = str(caught.value)
        assert "kind: ours is scripted, theirs gqa; serve the same model" in message
        assert "model: ours is not given, theirs m; serve the same model under the same name" in (
            message
        )
        assert "kv_heads: ours is not given, theirs 1" in message
        assert "dtype: ours is int32, theirs float32" in message


@pytest.mark.parametrize(
    ("prefill_key", "decode_key"), [("a" * 16, None), (None, "a" * 16), ("a" * 16, "b" * 16)]
)
async def test_pd_25_another_cluster_key_is_refused(
    prefill_key: str | None, decode_key: str | None
) -> None:
    keys = [None if key is None else ClusterKey(key) for key in (prefill_key, decode_key)]
    async with both(prefill_key=keys[0], decode_key=keys[1]) as (courier, node):
        landing, destination = node.reserve("a1", 20)
        with pytest.raises(HandshakeRefused, match="key"):
            await courier.meet(destination)
        assert node.server.landings.statistics().reserved == 1, "it may be met by another"
        with pytest.raises(HandshakeRefused, match="key"):
            await courier.deliver(staged(courier, destination))
        with pytest.raises(HandshakeRefused, match="key"):
            await landing.wait()


async def test_with_the_same_key_it_works() -> None:
    keys = [ClusterKey("a" * 16), ClusterKey("a" * 16)]
    async with both(prefill_key=keys[0], decode_key=keys[1]) as (courier, node):
        landing, destination = node.reserve("a1", 20)
        await courier.deliver(staged(courier, destination))
        await landing.wait()


async def test_a_node_that_is_not_there_is_named() -> None:
    async with both() as (courier, node):
        _, destination = node.reserve("a1", 20)
        nowhere = replace(destination, port=1)
        with pytest.raises(PeerLost, match=r"no decode node answers at 127\.0\.0\.1 port 1"):
            await courier.deliver(staged(courier, nowhere))


async def test_a_request_without_a_grant_says_what_is_missing() -> None:
    async with both() as (courier, node):
        _, destination = node.reserve("a1", 20)
        with pytest.raises(
            ControlError,
            match=r"without a grant .*'scripted': send it through this project's router",
        ):
            await courier.deliver(staged(courier, replace(destination, grant=None)))


async def test_a_node_that_has_restarted_is_connected_to_anew() -> None:
    async with open_courier(
        make("memory"), PREFILL, rank=0, staging_bytes=4096, send_timeout=20
    ) as courier:
        port = None
        for life in ("d-1", "d-2"):
            async with decode_side(make("memory"), DECODE, incarnation=life, port=port) as node:
                port = node.port
                landing, destination = node.reserve("a1", 20)
                parcel = staged(courier, destination)
                await courier.deliver(parcel)
                landed = await landing.wait()
                assert DECODE.unpack(node.bytes_of(landed.region), 5) == ScriptedKV(IDS)
