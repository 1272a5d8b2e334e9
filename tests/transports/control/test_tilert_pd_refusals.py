"""TileRT's stock prefill connector doing wrong, or coming to an end."""

from __future__ import annotations

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
)
from tilert_transports.control.tilert_pd import encode
from tilert_transports.control.tilert_pd_decode import REMEMBERED

from .tilert_recorded import (
    BARE_REQUEST_BYTES,
    DONE_BYTES,
    NIXL_HELLO_BYTES,
    REQUEST,
    REQUEST_BYTES,
    TOO_LONG_BYTES,
    request_of,
)
from .tilert_sides import Decode


@pytest.fixture
async def decode() -> Decode:
    return Decode()


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
    with pytest.raises(PeerLost, match="has gone"):
        await decode.inbox.receive("5f0c")
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
    with pytest.raises(GrantGone, match="nobody took it"):
        await decode.inbox.receive("5f0c")
    with pytest.raises(LookupError):
        await decode.receive()


async def test_a_waiter_that_leaves_makes_room_for_the_next(decode: Decode) -> None:
    for _ in range(2):
        with pytest.raises(LookupError):
            await decode.receive()
    stock = decode.connect()
    stock.sends(REQUEST_BYTES + DONE_BYTES)
    assert (await decode.receive()).request == REQUEST


async def test_who_comes_after_the_end_is_told_at_once_and_once(decode: Decode) -> None:
    stock = decode.connect()
    stock.sends(REQUEST_BYTES)
    stock.hangs_up()
    with pytest.raises(PeerLost, match="tilert-1 has gone before its KV cache had landed"):
        await decode.inbox.receive("5f0c")
    with pytest.raises(LookupError):
        await decode.receive()


async def test_a_new_attempt_makes_good_for_one_that_failed(decode: Decode) -> None:
    failed = decode.connect()
    failed.sends(REQUEST_BYTES)
    failed.hangs_up()
    decode.connect().sends(REQUEST_BYTES + DONE_BYTES)
    assert (await decode.receive()).landing.granted.generation == 2


async def test_what_is_discarded_gives_its_region_back(decode: Decode) -> None:
    stock = decode.connect()
    stock.sends(REQUEST_BYTES + DONE_BYTES)
    assert decode.inbox.discard("5f0c")
    assert decode.gauges() == (3, 0, 0, 0)
    with pytest.raises(LookupError):
        await decode.receive()


async def test_what_is_discarded_while_it_is_written_is_quarantined(decode: Decode) -> None:
    stock = decode.connect()
    stock.sends(REQUEST_BYTES)
    assert decode.inbox.discard("5f0c")
    assert decode.gauges() == (2, 0, 0, 1)
    stock.sends(DONE_BYTES)
    assert decode.gauges() == (3, 0, 0, 0)


async def test_what_is_discarded_before_it_comes_takes_no_region_for_long(decode: Decode) -> None:
    assert not decode.inbox.discard("5f0c")
    stock = decode.connect()
    stock.sends(REQUEST_BYTES)
    assert bytes(stock.said).endswith(encode({"error": "request 5f0c has ended"}))
    assert decode.gauges() == (2, 0, 0, 1), "it writes on, having read nothing"
    stock.sends(DONE_BYTES)
    assert decode.gauges() == (3, 0, 0, 0)
    decode.connect().sends(REQUEST_BYTES + DONE_BYTES)
    assert (await decode.receive()).request == REQUEST, "a later one is wanted"


async def test_a_discarded_request_that_is_too_long_is_refused_once(decode: Decode) -> None:
    decode.inbox.discard("5f0c")
    stock = decode.connect()
    stock.sends(request_of(seq_len="8193"))
    assert bytes(stock.said).count(b'"error"') == 1


async def test_the_memory_of_ends_is_bounded(decode: Decode) -> None:
    for number in range(REMEMBERED + 1):
        decode.inbox.discard(f"{number:x}")
    for rid, wanted in (("0", True), ("1", False)):
        stock = decode.connect()
        stock.sends(request_of(rid=f'"{rid}"'))
        assert (b"error" not in bytes(stock.said)) is wanted
