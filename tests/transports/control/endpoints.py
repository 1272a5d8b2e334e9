"""Decode and prefill nodes over real sockets, for tests."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import anyio
import pytest
from trio.testing import MockClock

from tilert_transports.control.auth import ClusterKey
from tilert_transports.control.client import ControlClient, Progressing
from tilert_transports.control.errors import (
    HandshakeRefused,
)
from tilert_transports.control.hello import Hello
from tilert_transports.control.listener import bind
from tilert_transports.control.messages import Grant
from tilert_transports.control.regions import LandingRegion, RegionPool
from tilert_transports.control.reservation import Granted
from tilert_transports.control.reservations import ReservationSettings
from tilert_transports.control.server import ControlServer
from tilert_transports.control.settings import ControlSettings

from .ledger import claim_of, make_regions
from .nodes import DECODE, PREFILL

PATIENT = ControlSettings(handshake_timeout=60, silence=60, linger=60)

jumping = pytest.mark.parametrize(
    "anyio_backend",
    # The threshold is real time: that much without any I/O, and the clock jumps.
    [pytest.param(("trio", {"clock": MockClock(autojump_threshold=0.05)}), id="autojump")],
)


class Memory:
    """What a transport would write to: the landing regions' bytes, and the writes under way."""

    def __init__(self) -> None:
        self.data = bytearray(3 << 20)
        self.started = anyio.Event()
        self.may_end = anyio.Event()
        self.drained = 0
        self.may_drain = True

    async def write(self, grant: Grant, progress: Progressing) -> int:
        self.data[grant.offset : grant.offset + 4096] = b"k" * 4096
        progress(3)
        return 77

    async def write_slowly(self, grant: Grant, progress: Progressing) -> None:
        self.started.set()
        await self.may_end.wait()

    async def drain(self) -> bool:
        self.drained += 1
        return self.may_drain


class WatchedPool(RegionPool):
    """Tells when a region has become free."""

    freed: anyio.Event

    def release(self, region: LandingRegion) -> None:
        super().release(region)
        self.freed.set()


class Decode:
    """A decode node at work."""

    def __init__(self, server: ControlServer, port: int, stop: Callable[[], None]) -> None:
        self.server = server
        self.port = port
        self.stop = stop

    def gauges(self) -> tuple[int, int, int, int, int]:
        """Reserved, writing, landed, taken, quarantined."""
        now = self.server.landings.statistics()
        return (now.reserved, now.writing, now.landed, now.taken, now.quarantined)


@asynccontextmanager
async def serving(
    *,
    hello: Hello = DECODE,
    key: ClusterKey | None = None,
    host: str = "127.0.0.1",
    settings: ControlSettings = PATIENT,
    reservation_settings: ReservationSettings | None = None,
    pool: RegionPool | None = None,
) -> AsyncGenerator[Decode]:
    listeners = await bind(host, 0)
    server = ControlServer(
        hello,
        pool or RegionPool(make_regions(3), slots=1),
        key=key,
        settings=settings,
        reservation_settings=reservation_settings,
    )
    port = listeners[0].getsockname()[1]
    async with anyio.create_task_group() as tasks:
        await tasks.start(server.serve, listeners)
        yield Decode(server, port, tasks.cancel_scope.cancel)
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def connected(
    decode: Decode,
    hello: Hello = PREFILL,
    *,
    key: ClusterKey | None = None,
    host: str = "127.0.0.1",
    settings: ControlSettings = PATIENT,
) -> AsyncGenerator[ControlClient]:
    client = ControlClient(host, decode.port, hello, key=key, settings=settings)
    async with anyio.create_task_group() as tasks:
        await tasks.start(client.run)
        yield client
        client.close()


async def refused(decode: Decode, hello: Hello, key: ClusterKey | None = None) -> HandshakeRefused:
    client = ControlClient("127.0.0.1", decode.port, hello, key=key, settings=PATIENT)
    with pytest.raises(HandshakeRefused) as caught:
        await client.run()
    assert not client.is_open
    return caught.value


async def read_to_end(stream: anyio.abc.ByteReceiveStream) -> bytes:
    data = b""
    try:
        while True:
            data += await stream.receive()
    except (anyio.EndOfStream, anyio.BrokenResourceError):
        return data


async def hand_over(client: ControlClient, granted: Granted, memory: Memory) -> None:
    await client.hand_off(claim_of(granted), memory.write, memory.drain)


async def next_one_is_served(decode: Decode, client: ControlClient, quarantined: int = 0) -> None:
    """In order over the same connection: all that was said before has arrived then."""
    landing = decode.server.reserve("next", 1000)
    await hand_over(client, landing.granted, Memory())
    await landing.wait()
    landing.release("imported")
    assert decode.gauges() == (0, 0, 0, 0, quarantined)
