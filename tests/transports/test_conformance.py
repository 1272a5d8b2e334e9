"""What every transport must do with bytes, plans and regions."""

from __future__ import annotations

import anyio
import pytest

from tests.transports.kit import (
    MIB,
    SOON,
    Pair,
    connected,
    crc,
    every_kind,
    fill,
    make,
    scattered,
    soon,
)
from tilert_transports.abc import Region
from tilert_transports.errors import (
    PlanInvalid,
    RegionInvalid,
)
from tilert_transports.plan import Plan

pytestmark = every_kind


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
