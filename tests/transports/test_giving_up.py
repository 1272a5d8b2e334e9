"""Writes that are cancelled or late, through every transport: after ``drain`` nothing lands."""

from __future__ import annotations

from contextlib import suppress
from random import Random

import anyio
import anyio.lowlevel
import pytest

from tests.transports.kit import (
    MIB,
    SOON,
    Pair,
    connected,
    crc,
    every_kind,
    fill,
    scattered,
    soon,
)
from tilert_transports.errors import (
    DeadlineExceeded,
)
from tilert_transports.plan import Plan

pytestmark = every_kind


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
