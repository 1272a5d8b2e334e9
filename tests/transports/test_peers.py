"""Peers in processes of their own: they hang, die and come back."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

import anyio
import pytest

from tests.free_ports import free_ports
from tests.transports.kit import (
    BACKENDS,
    MIB,
    PROCESS_KINDS,
    SOON,
    PeerProcess,
    crc,
    fill,
    make,
    peer_process,
    soon,
)
from tilert_transports.abc import Peer, Region, Transport
from tilert_transports.errors import DeadlineExceeded, PeerLost, PeerStale, TransportError
from tilert_transports.plan import Plan

NBYTES = 32 * MIB
WHOLE = Plan.whole(NBYTES)

# Processes are slow to start, and what happens to them is no business of the event loop: one kind
# on both backends is enough.
pytestmark = pytest.mark.parametrize(
    ("kind", "anyio_backend"),
    [
        pytest.param(kind, *backend.values, id=f"{kind}-{backend.id}")
        for kind in PROCESS_KINDS
        for backend in BACKENDS
        if kind == "tcp" or backend.id == "trio"
    ],
)


class Writer:
    """A transport with one filled region, which writes all of it to a process."""

    def __init__(self, transport: Transport, source: Region) -> None:
        self.transport = transport
        self.source = source

    @property
    def sent(self) -> memoryview:
        return self.transport.view(self.source)

    async def connect(self, process: PeerProcess) -> Peer:
        return await self.transport.connect(process.card, timeout=SOON)

    async def write(self, peer: Peer, seconds: float = SOON) -> None:
        deadline = anyio.current_time() + seconds
        target = peer.regions[0]
        await self.transport.write(peer, self.source, target, WHOLE, deadline=deadline)


@asynccontextmanager
async def writing(kind: str) -> AsyncGenerator[Writer]:
    transport = make(kind)
    try:
        source = await transport.allocate(NBYTES)
        fill(transport.view(source), 3)
        yield Writer(transport, source)
    finally:
        await transport.aclose()


async def test_a_peer_that_hangs(kind: str) -> None:
    with peer_process(kind, NBYTES) as process:
        async with writing(kind) as writer:
            peer = await writer.connect(process)
            process.stop()
            if kind != "nixl":  # which asks over the connection that it has, without the process
                with pytest.raises(DeadlineExceeded):
                    await writer.transport.connect(process.card, timeout=0.05)
            if writer.transport.caps.one_sided:
                await writer.write(peer)
                process.go_on()
                assert process.crc() == crc(writer.sent)
            else:
                await gives_up_and_settles(writer, peer, process)


async def gives_up_and_settles(writer: Writer, peer: Peer, process: PeerProcess) -> None:
    with suppress(DeadlineExceeded):
        await writer.write(peer, 0.05)
        # UCX may have found a way around the process, inside one host.
        assert writer.transport.name == "nixl"
    if writer.transport.name != "nixl":
        assert not await writer.transport.drain(peer, timeout=0.05)
        # What queues up behind it has not begun: nobody needs to wait for it.
        with pytest.raises(DeadlineExceeded):
            await writer.write(peer, 0.05)
    process.go_on()
    assert await writer.transport.drain(peer, timeout=SOON)
    landed = process.crc(NBYTES - 1)
    fill(writer.sent, 8)
    # A whole write on the same connection: what was on its way before has come through by then.
    last = peer.regions[0].part(NBYTES - 1, 1)
    await writer.transport.write(peer, writer.source, last, Plan.whole(1), deadline=soon())
    assert process.crc(NBYTES - 1) == landed


async def test_a_peer_that_dies_between_and_in_writes(kind: str) -> None:
    with peer_process(kind, NBYTES) as process:
        async with writing(kind) as writer, writing(kind) as other:
            peer = await writer.connect(process)
            alive = await writer.transport.connect(other.transport.card(), timeout=SOON)
            await writer.write(peer)
            assert process.crc() == crc(writer.sent)
            fill(writer.sent, 4)
            failed: list[TransportError] = []

            async def write_until_it_fails() -> None:
                while True:
                    try:
                        await writer.write(peer)
                    except TransportError as error:
                        failed.append(error)
                        return

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(write_until_it_fails)
                await writer.write(alive)
                process.kill()
            assert isinstance(failed[0], PeerLost)
            assert failed[0].retryable
            with pytest.raises(PeerLost):
                await writer.write(peer)
            await writer.write(alive)
            assert crc(other.sent) == crc(writer.sent)


async def test_a_peer_that_restarts_under_the_same_name(kind: str) -> None:
    options = [str(port) for port in free_ports(1)] if kind == "tcp" else []
    async with writing(kind) as writer:
        with peer_process(kind, NBYTES, *options) as process:
            before = await writer.connect(process)
            await writer.write(before)
            old_card = process.card
        with peer_process(kind, NBYTES, *options) as process:
            untouched = process.crc()
            for _ in range(2):
                with pytest.raises(PeerStale if kind == "tcp" else PeerLost):
                    await writer.write(before)
            with pytest.raises(PeerStale if kind == "tcp" else PeerLost):
                await writer.transport.connect(old_card, timeout=SOON)
            assert process.crc() == untouched
            after = await writer.connect(process)
            assert after.incarnation != before.incarnation
            await writer.write(after)
            assert process.crc() == crc(writer.sent)
            await writer.transport.disconnect(before)
