"""Both ends over real sockets."""

from __future__ import annotations

import logging
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import anyio
import pytest

from tilert_stream.errors import Busy, ConfigError
from tilert_transports.control.auth import ClusterKey
from tilert_transports.control.client import ControlClient, Progressing
from tilert_transports.control.errors import (
    GrantGone,
    HandOffFailed,
    HandshakeRefused,
    OutOfOrder,
    PeerLost,
)
from tilert_transports.control.frames import encode_frame
from tilert_transports.control.hello import Hello
from tilert_transports.control.listener import bind
from tilert_transports.control.messages import Claim, Grant, Ping, to_json
from tilert_transports.control.regions import LandingRegion, RegionPool
from tilert_transports.control.reservation import Granted
from tilert_transports.control.reservations import ReservationSettings
from tilert_transports.control.server import ControlServer
from tilert_transports.control.settings import ControlSettings

from .ledger import claim_of, make_regions, other
from .nodes import DECODE, KEY, LAYOUT, PREFILL, with_layout

QUICK = ControlSettings(linger=0.2)


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
    settings: ControlSettings = QUICK,
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
    settings: ControlSettings = QUICK,
) -> AsyncGenerator[ControlClient]:
    client = ControlClient(host, decode.port, hello, key=key, settings=settings)
    async with anyio.create_task_group() as tasks:
        await tasks.start(client.run)
        yield client
        client.close()


async def refused(decode: Decode, hello: Hello, key: ClusterKey | None = None) -> HandshakeRefused:
    client = ControlClient("127.0.0.1", decode.port, hello, key=key, settings=QUICK)
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


@pytest.mark.parametrize("key", [None, KEY], ids=["open", "keyed"])
async def test_a_hand_off(key: ClusterKey | None) -> None:
    memory = Memory()
    async with serving(key=key) as decode, connected(decode, key=key) as client:
        assert client.peer.card == b"card of decode-0"
        landing = decode.server.reserve("a1", 1000)
        await hand_over(client, landing.granted, memory)
        landed = await landing.wait()
        assert (landed.request, landed.tokens, landed.last_token) == ("a1", 900, 42)
        assert landed.checksums == {0: 77}
        assert landing.planes == {0: 3}
        assert landing.take() == landed
        region = landed.region
        assert memory.data[region.offset : region.offset + 4096] == b"k" * 4096
        landing.release("imported")
        assert decode.gauges() == (0, 0, 0, 0, 0)
        assert memory.drained == 0


async def test_eight_hand_offs_at_once_over_one_connection() -> None:
    async with serving() as decode, connected(decode) as client:

        async def request(name: str) -> None:
            landing = None
            while landing is None:
                try:
                    landing = decode.server.reserve(name, 1000)
                except Busy:
                    await landed.wait()
            await hand_over(client, landing.granted, Memory())
            assert (await landing.wait()).request == name
            landing.release("imported")
            landed.set()

        landed = anyio.Event()
        async with anyio.create_task_group() as tasks:
            for index in range(8):
                tasks.start_soon(request, f"r{index}")
        assert decode.gauges() == (0, 0, 0, 0, 0)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
async def test_one_listener_takes_in_both_families(host: str) -> None:
    async with serving(host="::") as decode, connected(decode, host=host) as client:
        landing = decode.server.reserve("a1", 1000)
        await hand_over(client, landing.granted, Memory())
        assert (await landing.wait()).request == "a1"


async def test_kv_06_a_mismatch_is_explained_to_both_and_others_are_served(
    caplog: pytest.LogCaptureFixture,
) -> None:
    theirs = with_layout(replace(PREFILL, node="prefill-9"), replace(LAYOUT, dtype="bfloat16"))
    async with serving() as decode, connected(decode) as client:
        error = await refused(decode, theirs)
        assert error.status == 503
        assert error.differences[0].field == "layout.dtype"
        assert "ours is bfloat16, theirs fp8_ds_mla" in error.message
        assert "--kv-cache-dtype" in error.message
        landing = decode.server.reserve("a1", 1000)
        await hand_over(client, landing.granted, Memory())
        await landing.wait()
    assert "prefill node prefill-9 does not fit" in caplog.text


async def test_another_cluster_key_is_refused() -> None:
    async with serving(key=KEY) as decode:
        error = await refused(decode, PREFILL, ClusterKey("another cluster's secret"))
        assert "cluster key is another one" in error.message
        error = await refused(decode, PREFILL)
        assert "this node has no cluster key" in error.message
        assert decode.server.receiver.statistics.stale == 0


HELLO = encode_frame(PREFILL.to_json())
GARBAGE = [
    (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "frame's length is 1195725856"),
    (b"\x00\x00\x00\x05{...}", "is no JSON"),
    (encode_frame({"type": "claim"}), "hello is needed"),
    (encode_frame({**PREFILL.to_json(), "card": 7}), "HELLO.card is 7; base64 is needed"),
    (HELLO + encode_frame({"type": "done"}), "message.type is 'done'"),
    (HELLO + encode_frame({"type": "commit", "generation": "x"}), "COMMIT.generation is 'x'"),
    (HELLO + encode_frame(to_json(Grant("a", 1, 0, 0, 0, 1, 1.0))), "only a decode node grants"),
    (HELLO + b"\x00\x00\x00\x05{", "ended 1 bytes into a frame of 5"),
    ((1 << 24).to_bytes(4, "big"), "must be from 2 to 1048576"),
]


@pytest.mark.parametrize(("data", "reason"), GARBAGE)
async def test_a_bad_peer_is_cut_alone_with_a_reason_in_the_log(
    data: bytes, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    memory = Memory()
    async with serving() as decode, connected(decode) as client:
        landing = decode.server.reserve("a1", 1000)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(
                client.hand_off, claim_of(landing.granted), memory.write_slowly, memory.drain
            )
            await memory.started.wait()
            async with await anyio.connect_tcp("127.0.0.1", decode.port) as stranger:
                await stranger.send(data)
                await stranger.send_eof()
                await read_to_end(stranger)
            assert decode.gauges() == (0, 1, 0, 0, 0)
            memory.may_end.set()
        assert (await landing.wait()).request == "a1"
    (record,) = [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert reason in record.getMessage()
    assert "127.0.0.1" in record.getMessage()


async def test_a_stranger_that_says_nothing_is_cut() -> None:
    settings = replace(QUICK, handshake_timeout=0.05)
    async with (
        serving(settings=settings) as decode,
        await anyio.connect_tcp("127.0.0.1", decode.port) as stranger,
    ):
        assert b"challenge" in await stranger.receive()
        with pytest.raises(anyio.EndOfStream):
            await stranger.receive()


async def test_a_peer_that_falls_silent_is_lost() -> None:
    settings = replace(QUICK, heartbeat=0.02, silence=0.06)
    async with (
        serving(settings=settings) as decode,
        await anyio.connect_tcp("127.0.0.1", decode.port) as peer,
    ):
        landing = decode.server.reserve("a1", 1000)
        await peer.send(HELLO + encode_frame(to_json(claim_of(landing.granted))))
        with pytest.raises(PeerLost, match="prefill-0 has gone"):
            await landing.wait()
        assert encode_frame(to_json(Ping(1))) in await read_to_end(peer)
        assert decode.gauges() == (0, 0, 0, 0, 1)


async def test_too_many_connections(caplog: pytest.LogCaptureFixture) -> None:
    settings = replace(QUICK, max_connections=1)
    async with serving(settings=settings) as decode, connected(decode):
        async with await anyio.connect_tcp("127.0.0.1", decode.port) as late:
            assert await read_to_end(late) == b""
        assert decode.server.connections == 1
    assert "there are 1 already (max_connections)" in caplog.text


# --- hand-offs that do not go well ---------------------------------------------------------------


async def next_one_is_served(decode: Decode, client: ControlClient, quarantined: int = 0) -> None:
    """In order over the same connection: all that was said before has arrived then."""
    landing = decode.server.reserve("next", 1000)
    await hand_over(client, landing.granted, Memory())
    await landing.wait()
    landing.release("imported")
    assert decode.gauges() == (0, 0, 0, 0, quarantined)


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
            with pytest.raises(HandOffFailed, match="decode-0 gave up: the client left"):
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
                    with pytest.raises(HandOffFailed):
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
        with pytest.raises(HandOffFailed, match=fault):
            await client.hand_off(claim, memory.write, memory.drain)
        assert memory.data == bytes(3 << 20)
        assert memory.drained == 0
        landing.release("done")
        await next_one_is_served(decode, client)


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


async def test_heartbeats_keep_a_lease_that_is_shorter_than_the_write() -> None:
    memory = Memory()
    settings = replace(QUICK, heartbeat=0.05, silence=5)
    async with (
        serving(settings=settings, reservation_settings=ReservationSettings(ttl=0.4)) as decode,
        connected(decode, settings=settings) as client,
    ):
        landing = decode.server.reserve("a1", 1000)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(
                client.hand_off, claim_of(landing.granted), memory.write_slowly, memory.drain
            )
            with anyio.move_on_after(0.8):
                await landing.wait()
            memory.may_end.set()
        assert (await landing.wait()).request == "a1"


# --- around it -----------------------------------------------------------------------------------


async def test_nobody_answers() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    client = ControlClient("127.0.0.1", port, PREFILL, settings=QUICK)
    with pytest.raises(PeerLost, match=f"not connected to 127.0.0.1 port {port} yet"):
        _ = client.peer
    with pytest.raises(PeerLost, match=f"no decode node answers at 127.0.0.1 port {port}"):
        await client.run()
    client.close()


async def test_what_answers_is_no_decode_node() -> None:
    (listener,) = await bind("127.0.0.1", 0)
    client = ControlClient(
        "127.0.0.1",
        listener.getsockname()[1],
        PREFILL,
        settings=replace(QUICK, silence=5, heartbeat=1),
    )

    async def answer() -> None:
        await anyio.wait_readable(listener)
        sock, _ = listener.accept()
        with sock:
            sock.sendall(encode_frame({"magic": "tilert-pd", "layout_version": 10}))
            await anyio.wait_readable(sock)

    with listener:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(answer)
            with pytest.raises(HandshakeRefused, match="give that node's dialect, tilert-pd"):
                await client.run()


async def test_an_address_that_is_taken_is_refused() -> None:
    listeners = await bind("127.0.0.1", 0)
    port = listeners[0].getsockname()[1]
    with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1, control port {port}"):
        await bind("127.0.0.1", port)
    for listener in listeners:
        listener.close()


async def test_an_open_port_without_a_key_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    for host, key in (("127.0.0.1", None), ("::1", None), ("::", KEY)):
        async with serving(host=host, key=key):
            pass
    assert caplog.text == ""
    async with serving(host="::"):
        pass
    assert "without a cluster key" in caplog.text
    assert "--cluster-key" in caplog.text


async def test_a_holder_is_told_of_a_failure_and_not_of_its_own_release() -> None:
    told: list[str] = []
    async with serving(reservation_settings=ReservationSettings(ttl=0.02)) as decode:
        released, expired = (decode.server.reserve(name, 1000) for name in ("a", "b"))
        released.on_failed = lambda: told.append("released")
        expired.on_failed = lambda: told.append("expired")
        released.release("left")
        with pytest.raises(GrantGone):
            await expired.wait()
        assert told == ["expired"]


async def test_landings_by_their_generation() -> None:
    async with serving() as decode:
        landing = decode.server.reserve("a1", 1000)
        assert decode.server.landings.get(landing.granted.generation) is landing
        with pytest.raises(OutOfOrder, match="has not landed"):
            landing.take()
        landing.renew()
        landing.release("left")
        landing.release("left")
        with pytest.raises(GrantGone):
            decode.server.landings.get(1)
        for index in range(10):
            decode.server.reserve(f"r{index}", 1000).release("left")
        assert decode.gauges() == (0, 0, 0, 0, 0)


def test_regions_are_named_as_a_transport_names_them() -> None:
    assert make_regions(2)[1] == LandingRegion(id=7, offset=1 << 20, nbytes=1 << 20)
