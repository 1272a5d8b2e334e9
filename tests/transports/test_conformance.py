"""What every transport must do, whatever carries its bytes."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from random import Random

import anyio
import pytest

from tests.transports.kit import BACKENDS, KINDS, MIB, SOON, Pair, connected, crc, fill, make, soon
from tilert_transports.abc import Region, Transport
from tilert_transports.errors import (
    DeadlineExceeded,
    HandshakeMismatch,
    PeerLost,
    PlanInvalid,
    RegionInvalid,
    TransportClosed,
)
from tilert_transports.plan import Plan

pytestmark = pytest.mark.parametrize(
    ("kind", "anyio_backend"),
    [
        pytest.param(kind, *backend.values, id=f"{kind}-{backend.id}")
        for kind in KINDS
        for backend in BACKENDS
        if kind != "auto" or backend.id == "trio"  # it only passes calls on
    ],
)


def scattered(nbytes: int, count: int) -> Plan:
    """``count`` rows that cover ``nbytes`` of the source and cannot merge."""
    size = nbytes // count
    rows = [(index * size, (count - 1 - index) * size, size) for index in range(count)]
    return Plan(rows)


def expected(pair: Pair, plan: Plan) -> bytearray:
    image = bytearray(len(pair.landed))
    for source, target, nbytes in plan.rows:
        image[target : target + nbytes] = pair.sent[source : source + nbytes]
    return image


# --- bytes arrive ----------------------------------------------------------------------------


@pytest.mark.parametrize("nbytes", [1, 4095, 656 * 64, MIB + 1, 64 * MIB])
async def test_all_bytes_land(kind: str, nbytes: int) -> None:
    async with connected(kind, nbytes) as pair:
        receipt = await pair.write(Plan.whole(nbytes))
        assert crc(pair.landed) == crc(pair.sent)
        assert (receipt.nbytes, receipt.segments) == (nbytes, 1)
        assert receipt.seconds > 0


@pytest.mark.soak
async def test_half_a_gigabyte_lands(kind: str) -> None:
    nbytes = 512 * MIB
    async with connected(kind, nbytes) as pair:
        await pair.write(scattered(nbytes, 237))
        size = nbytes // 237
        for index in range(0, 237, 40):
            sent = pair.sent[index * size : (index + 1) * size]
            landed = pair.landed[(236 - index) * size : (237 - index) * size]
            assert crc(landed) == crc(sent)


@pytest.mark.parametrize("count", [2, 237, 1024, 1025, 4096])
async def test_every_segment_lands_in_its_place(kind: str, count: int) -> None:
    async with connected(kind, 3 * MIB) as pair:
        plan = scattered(3 * MIB, count)
        receipt = await pair.write(plan)
        assert receipt.segments == count
        assert crc(pair.landed) == crc(memoryview(expected(pair, plan)))


async def test_a_plan_is_merged_before_it_is_sent(kind: str) -> None:
    async with connected(kind, MIB) as pair:
        receipt = await pair.write(Plan([(n * 1024, n * 1024, 1024) for n in range(1024)]))
        assert receipt.segments == 1
        assert crc(pair.landed) == crc(pair.sent)


async def test_offsets_are_relative_to_a_part_of_a_region(kind: str) -> None:
    async with connected(kind, 4096) as pair:
        source, target = pair.source.part(1000, 500), pair.target.part(2000, 600)
        await pair.writer.write(pair.peer, source, target, Plan([(10, 100, 490)]), deadline=soon())
        assert pair.landed[2100:2590] == pair.sent[1010:1500]
        assert not any(pair.landed[:2100])
        assert not any(pair.landed[2590:])


async def test_a_registered_buffer_is_a_source(kind: str) -> None:
    async with connected(kind, 4096) as pair:
        buffer = bytearray(b"KV" * 2048)
        source = await pair.writer.register(buffer)
        await pair.writer.write(pair.peer, source, pair.target, Plan.whole(4096), deadline=soon())
        assert pair.landed == buffer


async def test_eight_writers_to_eight_slots(kind: str) -> None:
    slot, writers = MIB, 8
    async with connected(kind, slot * writers) as pair:

        async def write(index: int) -> None:
            writer = make(kind)
            try:
                source = await writer.allocate(slot)
                fill(writer.view(source), index)
                peer = await writer.connect(card, timeout=SOON)
                target = pair.target.part(index * slot, slot)
                for plan in (scattered(slot, 64), Plan.whole(slot)):
                    await writer.write(peer, source, target, plan, deadline=soon())
                sent[index] = crc(writer.view(source))
            finally:
                await writer.aclose()

        card = pair.reader.card()
        sent: dict[int, int] = {}
        async with anyio.create_task_group() as tasks:
            for index in range(writers):
                tasks.start_soon(write, index)
        landed = {n: crc(pair.landed[n * slot : (n + 1) * slot]) for n in range(writers)}
        assert landed == sent
        assert len(set(sent.values())) == writers


async def test_writes_at_once_through_one_connection(kind: str) -> None:
    part, count = MIB // 4, 16
    async with connected(kind, part * count) as pair:

        async def write(index: int) -> None:
            source = pair.source.part(index * part, part)
            target = pair.target.part(index * part, part)
            await pair.writer.write(pair.peer, source, target, scattered(part, 8), deadline=soon())

        plan = [
            (index * part + source, index * part + target, nbytes)
            for index in range(count)
            for source, target, nbytes in scattered(part, 8).rows
        ]
        async with anyio.create_task_group() as tasks:
            for index in range(count):
                tasks.start_soon(write, index)
        assert crc(pair.landed) == crc(memoryview(expected(pair, Plan(plan))))


async def test_both_sides_can_write(kind: str) -> None:
    async with connected(kind, 4096) as pair:
        await pair.write(Plan.whole(4096))
        back = await pair.reader.connect(pair.writer.card(), timeout=SOON)
        fill(pair.landed, 9)
        await pair.reader.write(back, pair.target, pair.source, Plan.whole(4096), deadline=soon())
        assert crc(pair.sent) == crc(pair.landed)


# --- bad plans and regions -------------------------------------------------------------------


async def test_a_plan_out_of_range_moves_nothing(kind: str) -> None:
    async with connected(kind, 4096) as pair:
        for rows in ([(0, 0, 10), (4000, 100, 97)], [(0, 0, 10), (0, 4096, 1)]):
            with pytest.raises(PlanInvalid, match="row 1 of the plan") as caught:
                await pair.write(Plan(rows))
            assert caught.value.settled
            assert not caught.value.retryable
        assert not any(pair.landed)


async def test_a_part_bounds_what_a_plan_may_write(kind: str) -> None:
    async with connected(kind, 4096) as pair:
        granted = pair.target.part(0, 1024)
        with pytest.raises(PlanInvalid, match="dst_offset 1024"):
            await pair.writer.write(
                pair.peer, pair.source, granted, Plan([(0, 1024, 1)]), deadline=soon()
            )
        assert not any(pair.landed)


async def test_unknown_regions_are_refused(kind: str) -> None:
    async with connected(kind, 4096) as pair:
        for source, target in (
            (pair.source, Region(77, 0, 4096)),
            (Region(77, 0, 4096), pair.target),
            (pair.source, Region(pair.target.id, 1, 4096)),
            (Region(pair.source.id, -1, 4096), pair.target),
        ):
            with pytest.raises(RegionInvalid):
                await pair.writer.write(pair.peer, source, target, Plan.whole(1), deadline=soon())
        assert not any(pair.landed)
        with pytest.raises(RegionInvalid):
            pair.reader.view(Region(77, 0, 1))


async def test_a_region_made_after_the_card_is_not_on_it(kind: str) -> None:
    async with connected(kind, 4096) as pair:
        late = await pair.reader.allocate(4096)
        with pytest.raises(RegionInvalid, match="register it before the card is made"):
            await pair.writer.write(pair.peer, pair.source, late, Plan.whole(1), deadline=soon())
        again = await pair.writer.connect(pair.reader.card(), timeout=SOON)
        await pair.writer.write(again, pair.source, late, Plan.whole(4096), deadline=soon())
        assert crc(pair.reader.view(late)) == crc(pair.sent)


@pytest.mark.parametrize(
    "buffer",
    [b"read only", bytearray(), memoryview(bytearray(8))[::2], "no buffer"],
    ids=["read-only", "empty", "strided", "no-buffer"],
)
async def test_buffers_that_cannot_be_registered(kind: str, buffer: bytearray) -> None:
    transport = make(kind)
    with pytest.raises(RegionInvalid):
        await transport.register(buffer)
    with pytest.raises(RegionInvalid):
        await transport.allocate(0)
    await transport.aclose()


# --- giving up -------------------------------------------------------------------------------


async def settles(pair: Pair) -> None:
    """After ``drain`` the target keeps still, whatever happens to the source."""
    assert await pair.writer.drain(pair.peer, timeout=SOON)
    before, last_byte = crc(pair.landed), pair.landed[-1]
    fill(pair.sent, 5)
    # A whole write on the same connection: what was on its way before has come through by then.
    last = pair.target.part(len(pair.landed) - 1, 1)
    await pair.writer.write(pair.peer, pair.source, last, Plan.whole(1), deadline=soon())
    pair.landed[-1] = last_byte
    assert crc(pair.landed) == before


@pytest.mark.parametrize("steps", [0, 1, 3, 9, 40])
async def test_a_cancelled_write_lands_nothing_after_drain(kind: str, steps: int) -> None:
    nbytes = 16 * MIB
    async with connected(kind, nbytes) as pair:
        plan = Plan([(n * 8192, n * 16384, 8192) for n in range(1023)])
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pair.write, plan)
            for _ in range(steps):
                await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
        await settles(pair)


@pytest.mark.parametrize("seed", range(3))
async def test_a_write_past_its_deadline_lands_nothing_after_drain(kind: str, seed: int) -> None:
    nbytes = 16 * MIB
    async with connected(kind, nbytes) as pair:
        plan = Plan([(n * 8192, n * 16384, 8192) for n in range(1023)])
        took = (await pair.write(plan)).seconds
        deadline = anyio.current_time() + took * Random(seed).random()
        with suppress(DeadlineExceeded):
            await pair.writer.write(pair.peer, pair.source, pair.target, plan, deadline=deadline)
        await settles(pair)


@pytest.mark.soak
async def test_writes_given_up_at_random_points_of_many(kind: str) -> None:
    part, count = MIB, 8
    random = Random(11)
    async with connected(kind, part * count) as pair:

        async def write(index: int, seconds: float) -> None:
            source = pair.source.part(index * part, part)
            target = pair.target.part(index * part, part)
            deadline = anyio.current_time() + seconds
            with suppress(DeadlineExceeded):
                await pair.writer.write(
                    pair.peer, source, target, scattered(part, 64), deadline=deadline
                )
                landed.add(index)

        for turn in range(200):
            fill(pair.sent, turn)
            landed: set[int] = set()
            async with anyio.create_task_group() as tasks:
                for index in range(count):
                    tasks.start_soon(write, index, random.choice([SOON, random.random() / 200]))
                for _ in range(random.choice([0, 3, 30, 300])):
                    await anyio.lowlevel.checkpoint()
                if random.random() < 0.5:
                    tasks.cancel_scope.cancel()
            await settles(pair)
            fill(pair.sent, turn)
            for index in landed - {count - 1}:
                begin, plan = index * part, scattered(part, 64)
                for source, target, nbytes in plan.rows:
                    there = pair.landed[begin + target : begin + target + nbytes]
                    assert there == pair.sent[begin + source : begin + source + nbytes]


async def test_a_deadline_in_the_past_moves_nothing(kind: str) -> None:
    async with connected(kind, 4096) as pair:
        with pytest.raises(DeadlineExceeded) as caught:
            await pair.writer.write(
                pair.peer,
                pair.source,
                pair.target,
                Plan.whole(4096),
                deadline=anyio.current_time() - 1,
            )
        assert caught.value.settled
        assert not any(pair.landed)


async def test_drain_with_nothing_given_up(kind: str) -> None:
    async with connected(kind, 4096) as pair:
        assert await pair.writer.drain(pair.peer, timeout=SOON)


async def test_the_others_go_on_when_one_is_given_up(kind: str) -> None:
    part = 4 * MIB
    async with connected(kind, part * 4) as pair:

        async def write(index: int) -> None:
            source = pair.source.part(index * part, part)
            target = pair.target.part(index * part, part)
            with scopes[index]:
                await pair.writer.write(
                    pair.peer, source, target, Plan.whole(part), deadline=soon()
                )
                landed.append(index)

        landed: list[int] = []
        scopes = [anyio.CancelScope() for _ in range(4)]
        async with anyio.create_task_group() as tasks:
            for index in range(4):
                tasks.start_soon(write, index)
            await anyio.lowlevel.checkpoint()
            scopes[1].cancel()
        assert {0, 2, 3} <= set(landed)
        assert await pair.writer.drain(pair.peer, timeout=SOON)
        for index in landed:
            place = slice(index * part, (index + 1) * part)
            assert crc(pair.landed[place]) == crc(pair.sent[place])


# --- connections -----------------------------------------------------------------------------


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "cut": lambda card: card[:-5],
    "no-object": lambda _: b"[]",
    "version": lambda card: card.replace(b'"version":1', b'"version":2'),
    "transport": lambda card: card.replace(b'"transport":"', b'"transport":"x'),
    "garbage": lambda card: b"\xff" + card,
    "huge": lambda card: card + b" " * (1 << 20),
}


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_damaged_card_is_refused(kind: str, damage: str) -> None:
    writer, reader = make(kind), make(kind)
    await reader.allocate(4096)
    with pytest.raises(HandshakeMismatch, match="card"):
        await writer.connect(DAMAGES[damage](reader.card()), timeout=SOON)
    await writer.aclose()
    await reader.aclose()


async def test_a_card_of_a_closed_transport(kind: str) -> None:
    writer, reader = make(kind), make(kind)
    await reader.allocate(4096)
    card = reader.card()
    await reader.aclose()
    with pytest.raises(PeerLost) as caught:
        await writer.connect(card, timeout=SOON)
    assert caught.value.retryable
    await writer.aclose()


async def test_a_reader_that_closes_is_lost(kind: str) -> None:
    async with connected(kind, 4096) as pair:
        await pair.write(Plan.whole(10))
        await pair.reader.aclose()
        with pytest.raises(PeerLost):
            await pair.write(Plan.whole(10))


async def test_nothing_works_after_closing(kind: str) -> None:
    async with connected(kind, 4096) as pair:
        writer = pair.writer
        card = pair.reader.card()
        await writer.disconnect(pair.peer)
        with pytest.raises(TransportClosed):
            await pair.write(Plan.whole(1))
        with pytest.raises(TransportClosed):
            await writer.drain(pair.peer, timeout=1)
        await writer.aclose()
        await writer.aclose()
        with pytest.raises(TransportClosed):
            writer.card()
        with pytest.raises(TransportClosed):
            await writer.connect(card, timeout=1)
        with pytest.raises(TransportClosed):
            await writer.allocate(1)


async def test_closing_ends_open_writes(kind: str) -> None:
    nbytes = 16 * MIB
    async with connected(kind, nbytes) as pair:
        ends: list[bool] = []

        async def write() -> None:
            try:
                await pair.write(scattered(nbytes, 4096))
            except TransportClosed:
                ends.append(False)
            else:
                ends.append(True)

        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(write)
            await anyio.lowlevel.checkpoint()
            await anyio.lowlevel.checkpoint()
            await pair.writer.aclose()
        assert len(ends) == 5


async def test_a_peer_belongs_to_its_transport(kind: str) -> None:
    async with connected(kind, 4096) as pair:
        with pytest.raises(TransportClosed, match="is not connected"):
            await pair.reader.write(
                pair.peer, pair.target, pair.source, Plan.whole(1), deadline=soon()
            )


# --- it stays flat ---------------------------------------------------------------------------


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("tilert-")]


def all_ended() -> None:
    """Wait for threads that have said their last word and are about to vanish."""
    for thread in threads():
        thread.join(SOON)
    gc.collect()


def held() -> tuple[int, int]:
    """Threads of transports, and descriptors of this process."""
    return len(threads()), len(os.listdir("/proc/self/fd"))


def resident() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGESIZE")


async def test_a_thousand_transfers_leave_no_trace(kind: str) -> None:
    all_ended()
    async with connected(kind, 64 << 10) as pair:
        plan = scattered(64 << 10, 16)
        for _ in range(100):
            await pair.write(plan)
        gc.collect()
        before, memory = held(), resident()
        for number in range(1000):
            if number % 50:
                await pair.write(plan)
            else:
                with anyio.move_on_after(0):
                    await pair.write(plan)
        assert await pair.writer.drain(pair.peer, timeout=SOON)
        gc.collect()
        assert held() == before
        assert resident() - memory < 2 * MIB


async def test_connecting_and_closing_leaves_no_trace(kind: str) -> None:
    async def life() -> None:
        async with connected(kind, 4096) as pair:
            await pair.write(Plan.whole(4096))

    await life()
    all_ended()
    before = held()
    assert before[0] == 0
    for _ in range(5):
        await life()
    all_ended()
    assert held() == before


async def test_it_keeps_the_contract(kind: str) -> None:
    transport = make(kind)
    assert isinstance(transport, Transport)
    assert transport.name == kind
    await transport.aclose()
