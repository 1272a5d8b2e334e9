"""TileRT's stock prefill connector against our decode node, without I/O."""

from __future__ import annotations

from dataclasses import replace

import anyio
import pytest

from tilert_transports.control.errors import (
    ControlError,
    FrameError,
    GrantGone,
    HandOffFailed,
    MalformedMessage,
    OutOfOrder,
    PeerLost,
    RequestInUse,
)
from tilert_transports.control.regions import LandingRegion, RegionPool
from tilert_transports.control.reservations import ReservationSettings
from tilert_transports.control.tilert_pd import TilertHello, encode
from tilert_transports.control.tilert_pd_decode import Arrival, TilertInbox, TilertSession

from .ledger import Clock, make_regions
from .tilert_recorded import (
    BARE_REQUEST_BYTES,
    DONE_BYTES,
    NIXL_HELLO,
    NIXL_HELLO_BYTES,
    REQUEST,
    REQUEST_BYTES,
    TOO_LONG_BYTES,
    request_of,
)

BASE = NIXL_HELLO.bases["kv_base"]


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


@pytest.fixture
async def decode() -> Decode:
    return Decode()


async def test_a_hand_over_from_tilerts_connector(decode: Decode) -> None:
    stock = decode.connect()
    assert bytes(stock.said) == NIXL_HELLO_BYTES
    assert decode.gauges() == (2, 1, 0, 0)
    for byte in REQUEST_BYTES + DONE_BYTES:
        stock.sends(bytes([byte]))
    stock.hangs_up()
    assert bytes(stock.said) == NIXL_HELLO_BYTES, "an accepted request is answered by nothing"
    arrival = await decode.receive()
    assert arrival.request == REQUEST
    assert decode.gauges() == (2, 0, 1, 0)
    arrival.landing.take()
    arrival.landing.release("imported")
    assert decode.gauges() == (3, 0, 0, 0)


async def test_who_waits_is_woken_by_done(decode: Decode) -> None:
    arrivals: list[Arrival] = []

    async def wait() -> None:
        arrivals.append(await decode.inbox.receive("5f0c"))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(RequestInUse, match="5f0c is waited for already"):
            await decode.inbox.receive("5f0c")
        stock = decode.connect()
        stock.sends(REQUEST_BYTES)
        await anyio.wait_all_tasks_blocked()
        assert arrivals == []
        stock.sends(DONE_BYTES)
    assert arrivals[0].request == REQUEST
    with pytest.raises(LookupError):
        await decode.receive()


async def test_every_connection_gets_addresses_of_its_own(decode: Decode) -> None:
    first, second = decode.connect(), decode.connect()
    assert bytes(first.said) == NIXL_HELLO_BYTES
    assert bytes(second.said) == encode(hello(LandingRegion(7, 1 << 20, 1 << 20)).to_json())
    for stock, rid in ((second, "bbbb"), (first, "aaaa")):
        stock.sends(request_of(rid=f'"{rid}"'))
        stock.sends(encode({"done": True, "rid": rid, "rank": 0}))
    for rid, offset in (("aaaa", 0), ("bbbb", 1 << 20)):
        landing = (await decode.receive(rid)).landing
        assert landing.granted.region.offset == offset


async def test_kv_01_without_a_free_region_a_peer_is_not_greeted(decode: Decode) -> None:
    stocks = [decode.connect() for _ in range(3)]
    late = decode.connect()
    assert late.said == b""
    assert late.session.is_over
    late.hangs_up()
    assert decode.gauges() == (0, 3, 0, 0)
    stocks[0].hangs_up()
    assert decode.connect().said != b""


async def test_kv_02_a_late_done_of_an_earlier_attempt_completes_nothing(decode: Decode) -> None:
    first = decode.connect()
    first.sends(REQUEST_BYTES)
    second = decode.connect()
    second.sends(REQUEST_BYTES)
    assert decode.gauges() == (1, 1, 0, 1)
    first.sends(DONE_BYTES)
    with pytest.raises(LookupError):
        await decode.receive()
    assert decode.gauges() == (2, 1, 0, 0), "it has stopped writing"
    assert decode.inbox.receiver.statistics.stale == 1
    second.sends(DONE_BYTES)
    arrival = await decode.receive()
    assert arrival.landing.granted.generation == 2
    first.hangs_up()
    second.hangs_up()
    assert decode.gauges() == (2, 0, 1, 0)


async def test_a_second_attempt_replaces_a_cache_that_nobody_took(decode: Decode) -> None:
    first = decode.connect()
    first.sends(REQUEST_BYTES + DONE_BYTES)
    first.hangs_up()
    assert decode.gauges() == (2, 0, 1, 0)
    second = decode.connect()
    second.sends(REQUEST_BYTES)
    assert decode.gauges() == (2, 1, 0, 0)
    with pytest.raises(LookupError):
        await decode.receive()
    second.sends(DONE_BYTES)
    assert (await decode.receive()).landing.granted.generation == 2


async def test_kv_03_a_repeated_done_hands_nothing_over_again(decode: Decode) -> None:
    stock = decode.connect()
    stock.sends(REQUEST_BYTES + DONE_BYTES + DONE_BYTES)
    assert decode.inbox.receiver.statistics.duplicates == 1
    arrival = await decode.receive()
    stock.sends(DONE_BYTES)
    with pytest.raises(LookupError):
        await decode.receive()
    arrival.landing.take()
    arrival.landing.release("imported")
    stock.sends(DONE_BYTES)
    assert decode.inbox.receiver.statistics.stale == 1
    stock.hangs_up()
    assert decode.gauges() == (3, 0, 0, 0)


@pytest.mark.parametrize(
    ("request_bytes", "answer"),
    [
        (request_of(seq_len="8193"), TOO_LONG_BYTES),
        (
            request_of(rank="7"),
            encode({"error": "rank 7 sends nothing in this layout; rank 0 does"}),
        ),
    ],
    ids=["kv_05", "kv_03"],
)
async def test_a_refusal_that_goes_unseen_costs_one_region_until_done(
    decode: Decode, request_bytes: bytes, answer: bytes
) -> None:
    failures: list[HandOffFailed] = []

    async def wait() -> None:
        with pytest.raises(HandOffFailed) as caught:
            await decode.inbox.receive("5f0c")
        failures.append(caught.value)

    stock = decode.connect()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        stock.sends(request_bytes)
    assert bytes(stock.said) == NIXL_HELLO_BYTES + answer
    assert failures[0].message in answer.decode()
    assert decode.gauges() == (2, 0, 0, 1), "it writes on, having read nothing"
    decode.clock.now += 10_000
    decode.inbox.reservations.expire()
    assert decode.gauges() == (2, 0, 0, 1)
    rank = 7 if b"rank 7" in answer else 0
    stock.sends(encode({"done": True, "rid": "5f0c", "rank": rank}))
    assert decode.gauges() == (3, 0, 0, 0)
    with pytest.raises(LookupError):
        await decode.receive()
    stock.hangs_up()


async def test_kv_05_a_prompt_as_long_as_the_buffer_lands(decode: Decode) -> None:
    stock = decode.connect()
    stock.sends(request_of(seq_len="8192") + DONE_BYTES)
    assert (await decode.receive()).request.seq_len == 8192


@pytest.mark.parametrize(
    "data",
    [
        encode({"done": True, "rid": "77aa", "rank": 0}),
        encode({"done": True, "rid": "5f0c", "rank": 1}),
    ],
)
async def test_a_done_for_another_request_or_rank_closes_the_connection(
    decode: Decode, data: bytes
) -> None:
    stock = decode.connect()
    stock.sends(BARE_REQUEST_BYTES)
    with pytest.raises(OutOfOrder, match=r"on the connection of 5f0c \(rank 0\)") as caught:
        stock.sends(data)
    stock.hangs_up(caught.value)
    with pytest.raises(LookupError):
        await decode.receive()
    assert decode.gauges() == (2, 0, 0, 1)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", FrameError),
        (DONE_BYTES, MalformedMessage),
        (REQUEST_BYTES + REQUEST_BYTES, MalformedMessage),
        (REQUEST_BYTES + encode({"done": False, "rid": "5f0c", "rank": 0}), MalformedMessage),
        (request_of(seq_len='"8"'), MalformedMessage),
    ],
)
async def test_garbage_closes_that_connection_alone(
    decode: Decode, data: bytes, error: type[ControlError]
) -> None:
    good = decode.connect()
    good.sends(request_of(rid='"aaaa"'))
    bad = decode.connect()
    with pytest.raises(error) as caught:
        bad.sends(data)
    bad.hangs_up(caught.value)
    good.sends(encode({"done": True, "rid": "aaaa", "rank": 0}))
    assert (await decode.receive("aaaa")).request.rid == "aaaa"


async def test_kv_07_a_sender_that_dies_is_told_to_who_waits_and_its_region_ages_out(
    decode: Decode,
) -> None:
    stock = decode.connect()
    stock.sends(REQUEST_BYTES)
    failures: list[PeerLost] = []

    async def wait() -> None:
        with pytest.raises(PeerLost) as caught:
            await decode.inbox.receive("5f0c")
        failures.append(caught.value)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        stock.hangs_up()
    assert "tilert-1 has gone before its KV cache had landed" in failures[0].message
    assert decode.gauges() == (2, 0, 0, 1)
    decode.clock.now += 60
    decode.inbox.reservations.expire()
    assert decode.gauges() == (3, 0, 0, 0)


async def test_a_connection_that_asks_nothing_costs_nothing(decode: Decode) -> None:
    stock = decode.connect()
    stock.session.receive_end()
    stock.hangs_up()
    assert decode.gauges() == (3, 0, 0, 0)


async def test_half_a_request_may_be_followed_by_writes(decode: Decode) -> None:
    stock = decode.connect()
    stock.sends(REQUEST_BYTES[:20])
    with pytest.raises(FrameError) as caught:
        stock.session.receive_end()
    stock.hangs_up(caught.value)
    assert decode.gauges() == (2, 0, 0, 1)


async def test_a_connection_that_says_nothing_for_two_minutes_is_closed(decode: Decode) -> None:
    stock = decode.connect()
    assert stock.session.next_deadline == decode.clock.now + 120
    decode.clock.now += 100
    stock.sends(REQUEST_BYTES)
    assert stock.session.next_deadline == decode.clock.now + 120
    stock.session.ping()
    with pytest.raises(PeerLost, match="said nothing for 120 s"):
        stock.session.expire()


async def test_a_transfer_that_takes_too_long_fails_and_its_late_done_frees_the_region(
    decode: Decode,
) -> None:
    stock = decode.connect()
    stock.sends(REQUEST_BYTES)
    failures: list[GrantGone] = []

    async def wait() -> None:
        with pytest.raises(GrantGone) as caught:
            await decode.inbox.receive("5f0c")
        failures.append(caught.value)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        decode.clock.now += 120
        decode.inbox.reservations.expire()
    assert "its KV cache never came" in failures[0].message
    assert decode.gauges() == (2, 0, 0, 1)
    stock.sends(DONE_BYTES)
    assert decode.gauges() == (3, 0, 0, 0)
    with pytest.raises(LookupError):
        await decode.receive()


async def test_a_cache_that_nobody_takes_expires(decode: Decode) -> None:
    stock = decode.connect()
    stock.sends(REQUEST_BYTES + DONE_BYTES)
    stock.hangs_up()
    decode.clock.now += 120
    decode.inbox.reservations.expire()
    assert decode.gauges() == (3, 0, 0, 0)
    with pytest.raises(LookupError):
        await decode.receive()


async def test_a_waiter_that_leaves_makes_room_for_the_next(decode: Decode) -> None:
    for _ in range(2):
        with pytest.raises(LookupError):
            await decode.receive()
    stock = decode.connect()
    stock.sends(REQUEST_BYTES + DONE_BYTES)
    assert (await decode.receive()).request == REQUEST
