"""TileRT's sender and our decode node, joined without I/O."""

from __future__ import annotations

from dataclasses import replace

import anyio

from tilert_transports.control.errors import (
    ControlError,
)
from tilert_transports.control.regions import LandingRegion, RegionPool
from tilert_transports.control.reservations import ReservationSettings
from tilert_transports.control.tilert_pd import TilertHello
from tilert_transports.control.tilert_pd_decode import Arrival, TilertInbox
from tilert_transports.control.tilert_pd_session import TilertSession

from .ledger import Clock, make_regions
from .tilert_recorded import (
    NIXL_HELLO,
)


def hello(region: LandingRegion) -> TilertHello:
    moved = {name: base + region.offset for name, base in NIXL_HELLO.bases.items()}
    return replace(NIXL_HELLO, bases=moved)


class Decode:
    def __init__(self) -> None:
        self.clock = Clock()
        self.inbox = TilertInbox(
            RegionPool(make_regions(3), slots=1),
            hello,
            incarnation="d-1",
            max_seq_len=NIXL_HELLO.max_seq_len,
            clock=self.clock,
            sooner=lambda: None,
            settings=ReservationSettings(ttl=120, max_lifetime=240, lost_writer_time=60),
        )
        self.numbers = 0

    def connect(self) -> Stock:
        self.numbers += 1
        return Stock(self, self.numbers)

    def gauges(self) -> tuple[int, int, int, int]:
        """Free, writing, landed, quarantined."""
        now = self.inbox.reservations.statistics()
        assert now.reserved == 0
        return (now.free, now.writing, now.landed, now.quarantined)

    async def receive(self, rid: str = "5f0c") -> Arrival:
        """What has arrived by now."""
        found: list[Arrival] = []

        async def receive() -> None:
            found.append(await self.inbox.receive(rid))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(receive)
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
        if not found:
            raise LookupError(rid)
        return found[0]


class Stock:
    """A connection of TileRT's sender, which reads the hello and nothing after it."""

    def __init__(self, decode: Decode, number: int) -> None:
        self.said = bytearray()
        self.decode = decode
        self.session = TilertSession(number, decode.inbox, self.said.extend)
        self.session.begin()

    def sends(self, data: bytes) -> None:
        self.session.receive(data)

    def hangs_up(self, error: ControlError | None = None) -> None:
        self.session.end(error)
