"""Both ends over real sockets."""

from __future__ import annotations

import logging
from dataclasses import replace

import anyio
import pytest

from tilert_stream.errors import Busy
from tilert_transports.control.auth import ClusterKey
from tilert_transports.control.errors import (
    PeerLost,
)
from tilert_transports.control.frames import encode_frame
from tilert_transports.control.messages import Grant, Ping, to_json

from .endpoints import (
    PATIENT,
    Memory,
    connected,
    hand_over,
    jumping,
    read_to_end,
    refused,
    serving,
)
from .ledger import claim_of
from .nodes import KEY, PREFILL, with_layout


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
    theirs = with_layout(replace(PREFILL, node="prefill-9"), dtype="bfloat16")
    async with serving() as decode, connected(decode) as client:
        error = await refused(decode, theirs)
        assert error.status == 503
        assert error.differences[0].field == "dtype"
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
    (encode_frame({"type": "claim"}), "hello or refused is needed"),
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
    settings = replace(PATIENT, handshake_timeout=0.05)
    async with (
        serving(settings=settings) as decode,
        await anyio.connect_tcp("127.0.0.1", decode.port) as stranger,
    ):
        assert b"challenge" in await stranger.receive()
        with pytest.raises(anyio.EndOfStream):
            await stranger.receive()


@jumping
async def test_a_peer_that_falls_silent_is_lost() -> None:
    settings = replace(PATIENT, silence=20)  # before its grant expires
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
    settings = replace(PATIENT, max_connections=1)
    async with serving(settings=settings) as decode, connected(decode):
        async with await anyio.connect_tcp("127.0.0.1", decode.port) as late:
            assert await read_to_end(late) == b""
        assert decode.server.connections == 1
    assert "there are 1 already (max_connections)" in caplog.text
