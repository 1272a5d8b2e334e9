"""Hand-offs that do not go well, over real sockets."""

from __future__ import annotations

import anyio
import pytest

from tilert_transports.control import session
from tilert_transports.control.client import ControlClient, Progressing
from tilert_transports.control.errors import (
    GrantGone,
    HandOffFailed,
    PeerLost,
)
from tilert_transports.control.frames import JSONObject
from tilert_transports.control.messages import Claim, Grant, Message, to_json
from tilert_transports.control.reservations import ReservationSettings

from .endpoints import (
    Memory,
    WatchedPool,
    connected,
    hand_over,
    next_one_is_served,
    serving,
)
from .ledger import claim_of, make_regions, other


async def test_a_release_stops_the_writer_and_frees_the_region_when_it_has_stopped() -> None:
    memory = Memory()
    async with serving() as decode, connected(decode) as client:
        landing = decode.server.reserve("a1", 1000)

        async def release() -> None:
            await memory.started.wait()
            landing.release("the client left")
            assert decode.gauges() == (0, 0, 0, 0, 1)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(release)
            with pytest.raises(GrantGone, match="decode-0 gave up: the client left"):
                await client.hand_off(claim_of(landing.granted), memory.write_slowly, memory.drain)
        assert memory.drained == 1
        with pytest.raises(HandOffFailed, match="released: the client left"):
            await landing.wait()
        await next_one_is_served(decode, client)


async def test_a_writer_that_cannot_be_drained_keeps_its_region_in_quarantine() -> None:
    memory = Memory()
    memory.may_drain = False
    async with serving() as decode:
        async with connected(decode) as client:
            landing = decode.server.reserve("a1", 1000)
            async with anyio.create_task_group() as tasks:

                async def hand_off() -> None:
                    with pytest.raises(GrantGone):
                        await client.hand_off(
                            claim_of(landing.granted), memory.write_slowly, memory.drain
                        )

                tasks.start_soon(hand_off)
                await memory.started.wait()
                landing.release("the client left")
            await next_one_is_served(decode, client, quarantined=1)
        assert decode.gauges() == (0, 0, 0, 0, 1)


@pytest.mark.parametrize("moment", ["claiming", "writing"])
async def test_a_hand_off_that_is_cancelled(moment: str) -> None:
    memory = Memory()
    async with serving() as decode, connected(decode) as client:
        landing = decode.server.reserve("a1", 1000)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(
                client.hand_off, claim_of(landing.granted), memory.write_slowly, memory.drain
            )
            if moment == "writing":
                await memory.started.wait()
            else:
                await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
        with pytest.raises(HandOffFailed, match="prefill-0 gave up: the hand-off was cancelled"):
            await landing.wait()
        assert memory.drained == (1 if moment == "writing" else 0)
        await next_one_is_served(decode, client)


async def test_a_write_that_fails_is_told_to_both() -> None:
    memory = Memory()

    async def write(grant: Grant, progress: Progressing) -> None:
        raise ZeroDivisionError("secret path")

    async with serving() as decode, connected(decode) as client:
        landing = decode.server.reserve("a1", 1000)
        with pytest.raises(ZeroDivisionError):
            await client.hand_off(claim_of(landing.granted), write, memory.drain)
        with pytest.raises(HandOffFailed) as caught:
            await landing.wait()
        assert "gave up: writing failed (ZeroDivisionError)" in caught.value.message
        await next_one_is_served(decode, client)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [({"tokens": 1001}, "1001 tokens; 1000 are reserved"), ({"generation": 9}, "has expired")],
)
async def test_kv_01_a_claim_that_is_refused_writes_nothing(
    changes: dict[str, int], fault: str
) -> None:
    memory = Memory()
    async with serving() as decode, connected(decode) as client:
        landing = decode.server.reserve("a1", 1000)
        claim = other(claim_of(landing.granted), **changes)
        with pytest.raises((HandOffFailed, GrantGone), match=fault):
            await client.hand_off(claim, memory.write, memory.drain)
        assert memory.data == bytes(3 << 20)
        assert memory.drained == 0
        landing.release("done")
        await next_one_is_served(decode, client)


WRONG_GRANTS: list[dict[str, object]] = [
    {},
    {"request": "b2"},
    {"rank": 1},
    {"generation": 2},
    {"generation": None},
    {"generation": "x"},
    {"generation": "1"},
    {"nbytes": 4095},
    {"type": "granted"},
    {"type": "released"},
]


@pytest.mark.parametrize("changes", WRONG_GRANTS)
async def test_kv_01_not_a_byte_is_written_for_a_grant_that_is_not_the_claims(
    changes: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a decode node of another make might answer; one that is without a field is no grant."""

    def spoil(message: Message) -> JSONObject:
        content = to_json(message)
        if not isinstance(message, Grant):
            return content
        if not changes:
            return {"type": "grant", "accept": True, "generation": message.generation}
        return {**content, **changes}

    monkeypatch.setattr(session, "to_json", spoil)
    memory = Memory()
    async with serving() as decode, connected(decode) as client:
        landing = decode.server.reserve("a1", 1000)
        with pytest.raises(PeerLost):
            await client.hand_off(claim_of(landing.granted), memory.write, memory.drain)
        assert memory.data == bytes(3 << 20)
        assert not client.is_open
        with pytest.raises(PeerLost, match="prefill-0 has gone"):
            await landing.wait()


@pytest.mark.parametrize("who", ["prefill", "decode"])
async def test_the_end_of_the_connection_fails_the_hand_off_on_both_sides(who: str) -> None:
    memory = Memory()
    async with serving() as decode, connected(decode) as client:
        landing = decode.server.reserve("a1", 1000)

        async def end() -> None:
            await memory.started.wait()
            if who == "prefill":
                client.close()
            else:
                decode.stop()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(end)
            with pytest.raises(PeerLost):
                await client.hand_off(claim_of(landing.granted), memory.write_slowly, memory.drain)
        assert memory.drained == 1, "the staging memory can be used again"
        with pytest.raises(PeerLost, match="prefill-0 has gone"):
            await landing.wait()
        assert not client.is_open
        with pytest.raises(PeerLost):
            await hand_over(client, landing.granted, memory)


async def test_regions_of_a_writer_that_is_gone_age_out_by_themselves() -> None:
    memory = Memory()
    pool = WatchedPool(make_regions(3), slots=1)
    pool.freed = anyio.Event()
    settings = ReservationSettings(lost_writer_time=0.01)
    async with serving(pool=pool, reservation_settings=settings) as decode:
        async with connected(decode) as client:
            landing = decode.server.reserve("a1", 1000)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(lose, client, claim_of(landing.granted), memory)
                await memory.started.wait()
                client.close()
        with pytest.raises(PeerLost):
            await landing.wait()
        await pool.freed.wait()
        assert decode.gauges() == (0, 0, 0, 0, 0)


async def lose(client: ControlClient, claim: Claim, memory: Memory) -> None:
    with pytest.raises(PeerLost):
        await client.hand_off(claim, memory.write_slowly, memory.drain)


async def test_a_lease_that_nobody_renews_ends_by_itself() -> None:
    settings = ReservationSettings(ttl=0.02)
    async with serving(reservation_settings=settings) as decode:
        landing = decode.server.reserve("a1", 1000)
        with pytest.raises(GrantGone, match="never came"):
            await landing.wait()
        assert decode.gauges() == (0, 0, 0, 0, 0)
        with pytest.raises(GrantGone):
            landing.renew()
        with pytest.raises(GrantGone):
            decode.server.landings.get(landing.granted.generation)
