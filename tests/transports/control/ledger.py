"""A receiver and what it says, on a clock that only tests move."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tilert_transports.control.messages import Claim, Grant, Message
from tilert_transports.control.receiver import Receiver
from tilert_transports.control.regions import LandingRegion, RegionPool
from tilert_transports.control.reservation import Event, Granted
from tilert_transports.control.reservations import Reservations, ReservationSettings

REGION_BYTES = 1 << 20
MAX_SEQ_LEN = 8192


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def make_regions(count: int) -> list[LandingRegion]:
    return [LandingRegion(7, index * REGION_BYTES, REGION_BYTES) for index in range(count)]


class DecodeSide:
    """Peers are numbers, from 0; so many are connected."""

    def __init__(self, ranks: Iterable[int] = (0,), slots: int = 1, peers: int = 3) -> None:
        self.clock = Clock()
        self.sent: list[tuple[int, Message]] = []
        self.told: list[Event] = []
        self.pool = RegionPool(make_regions(slots + 2), slots)
        self.reservations = Reservations(
            self.pool,
            incarnation="d-1",
            max_seq_len=MAX_SEQ_LEN,
            send=self.post,
            tell=self.told.append,
            clock=self.clock,
            sooner=lambda: None,
            settings=ReservationSettings(ttl=30, max_lifetime=600, lost_writer_time=60),
        )
        self.receiver = Receiver(self.reservations, ranks, self.post)
        for peer in range(peers):
            self.receiver.connect(peer, f"prefill-{peer}")

    def post(self, peer: int, message: Message) -> None:
        self.sent.append((peer, message))

    def said(self) -> list[tuple[int, Message]]:
        """What was sent since this was asked last."""
        sent, self.sent = self.sent, []
        return sent

    def heard(self) -> list[Event]:
        """What was told since this was asked last."""
        told = list(self.told)
        self.told.clear()
        return told

    def reserve(self, request: str = "a1", max_tokens: int = 1000) -> Granted:
        return self.reservations.reserve(request, max_tokens)

    def claim(self, granted: Granted, peer: int = 0, rank: int = 0, nbytes: int = 4096) -> Claim:
        """Send a claim that fits; return it."""
        claim = claim_of(granted, rank, nbytes)
        self.receiver.receive(peer, claim)
        return claim

    def granted(self, granted: Granted, peer: int = 0, rank: int = 0, nbytes: int = 4096) -> Grant:
        """Send a claim that fits, and take the grant that answers it."""
        self.claim(granted, peer, rank, nbytes)
        to, grant = self.sent.pop()
        assert to == peer
        assert isinstance(grant, Grant)
        return grant

    def gauges(self) -> tuple[int, int, int, int, int, int]:
        """Free, reserved, writing, landed, taken, quarantined."""
        now = self.reservations.statistics()
        return (now.free, now.reserved, now.writing, now.landed, now.taken, now.quarantined)

    @property
    def idle(self) -> bool:
        return self.gauges() == (self.pool.count, 0, 0, 0, 0, 0)


def claim_of(granted: Granted, rank: int = 0, nbytes: int = 4096) -> Claim:
    return Claim(
        request=granted.request,
        incarnation=granted.incarnation,
        generation=granted.generation,
        rank=rank,
        tokens=900,
        nbytes=nbytes,
        last_token=42,
    )


def other(claim: Claim, **changes: int | str | None) -> Claim:
    return replace(claim, **changes)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - which field it is, the caller knows
