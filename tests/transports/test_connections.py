"""Connecting, closing and staying flat, through every transport."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable

import anyio
import anyio.lowlevel
import pytest

from tests.transports.kit import (
    MIB,
    SOON,
    connected,
    every_kind,
    make,
    scattered,
    soon,
)
from tilert_transports.abc import Transport
from tilert_transports.errors import (
    HandshakeMismatch,
    PeerLost,
    TransportClosed,
)
from tilert_transports.plan import Plan

pytestmark = every_kind


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
