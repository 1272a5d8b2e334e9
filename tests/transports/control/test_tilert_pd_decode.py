"""TileRT's stock prefill connector against our decode node, without I/O."""

from __future__ import annotations

import anyio
import pytest

from tilert_transports.control.errors import (
    RequestInUse,
)
from tilert_transports.control.regions import LandingRegion
from tilert_transports.control.tilert_pd import encode
from tilert_transports.control.tilert_pd_decode import Arrival

from .tilert_recorded import (
    DONE_BYTES,
    NIXL_HELLO_BYTES,
    REQUEST,
    REQUEST_BYTES,
    request_of,
)
from .tilert_sides import Decode, hello


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
    landed = arrival.landing.take()
    assert (landed.tokens, landed.last_token) == (REQUEST.seq_len, REQUEST.last_prompt_token)
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
