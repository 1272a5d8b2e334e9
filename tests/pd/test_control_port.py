"""Strangers, and prefill nodes gone mad, on a decode node's control port while it serves."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.lowlevel
import orjson
import pytest

from tests.pd.cluster import Answer, Cluster
from tests.pd.raw_prefill import RawPrefill, hello_of, raw_prefill
from tilert_engine.scripted import Script
from tilert_stream.cluster import decode_call
from tilert_stream.cluster.grant import Grant as HTTPGrant
from tilert_stream.testing import Gate
from tilert_transports.control.auth import ClusterKey
from tilert_transports.control.frames import FrameReader, encode_frame
from tilert_transports.control.grant_id import FORETOLD
from tilert_transports.control.handshake import PrefillHandshake
from tilert_transports.control.messages import (
    Abort,
    Commit,
    Decline,
    Grant,
    Message,
    Progress,
    Released,
)

if TYPE_CHECKING:
    from anyio.abc import SocketStream

SECRET: Final = "k" * 16
GARBAGE: Final = [
    pytest.param(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", id="http"),
    pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", id="tls"),
    pytest.param(random.Random(4).randbytes(5000), id="random"),
    pytest.param(b"\xff\xff\xff\xff", id="4 GiB announced"),
    pytest.param((16 << 20).to_bytes(4, "big") + b"{", id="16 MiB announced"),
    pytest.param(b"\x00\x00\x00\x00", id="nothing announced"),
    pytest.param(b"\x00\x00\x00\x02[]", id="no object"),
    pytest.param(b"\x00\x00\x00\x04{\xff\xff}", id="no UTF-8"),
    pytest.param(encode_frame({"type": "hello"}), id="half a HELLO"),
    pytest.param(encode_frame({"type": "claim", "generation": 1}), id="claim first"),
    pytest.param(encode_frame({"d": {"e": {}}, "type": ["x"] * 9}), id="no type"),
]


@pytest.fixture
async def cluster() -> AsyncGenerator[Cluster]:
    """One that serves, on one slot."""
    async with Cluster(slots=1).running() as cluster:
        yield cluster


@dataclass
class Computing:
    """A cluster whose prefill stands at a gate, in the middle of a prompt."""

    cluster: Cluster
    answers: list[Answer]
    open: Callable[[], None]

    async def is_answered(self) -> None:
        """Let prefill go on: the whole answer comes, and the next one."""
        self.open()
        while not self.answers:
            await anyio.lowlevel.checkpoint()
        assert self.answers[0].text == "abcabcabc"
        await served(self.cluster)


@pytest.fixture
async def computing() -> AsyncGenerator[Computing]:
    with Gate() as gate:
        cluster = Cluster(prefill=Script(before_chunk=gate.pass_through), slots=1)
        made = Computing(cluster, [], gate.open)
        async with cluster.running(), anyio.create_task_group() as tasks:

            async def ask() -> None:
                made.answers.append(await cluster.ask(max_tokens=9))

            tasks.start_soon(ask)
            await gate.arrival()
            yield made


async def connect(cluster: Cluster) -> SocketStream:
    return await anyio.connect_tcp("127.0.0.1", cluster.ports[0].port)


async def read_to_the_end(stream: SocketStream) -> None:
    try:
        while True:
            await stream.receive()
    except (anyio.EndOfStream, anyio.BrokenResourceError):
        pass


async def served(cluster: Cluster) -> None:
    assert (await cluster.ask(max_tokens=3)).text == "abc"
    await cluster.idle()


@pytest.mark.parametrize("garbage", GARBAGE)
async def test_garbage_ends_its_own_connection_and_no_other(
    cluster: Cluster, garbage: bytes
) -> None:
    await served(cluster)  # prefill's own connection is open now
    async with await connect(cluster) as stranger:
        await stranger.send(garbage)
        await read_to_the_end(stranger)
    await served(cluster)


async def test_who_says_nothing_or_half_a_word_holds_nobody_up(cluster: Cluster) -> None:
    async with await connect(cluster), await connect(cluster) as slow:
        hello = encode_frame(hello_of(cluster).to_json())
        for byte in hello[:40]:
            await slow.send(bytes((byte,)))
        await served(cluster)
    await served(cluster)


WORDS: Final = [
    pytest.param(Commit(1, 12), id="commit"),
    pytest.param(Abort(1, "mine"), id="abort"),
    pytest.param(Released(1), id="released"),
    pytest.param(Progress(1, 3), id="progress"),
    pytest.param(Commit(99, 12), id="of a generation to come"),
]


@pytest.mark.parametrize("word", WORDS)
async def test_kv_02_a_word_about_anothers_generation_changes_nothing(
    computing: Computing, word: Message
) -> None:
    async with raw_prefill(computing.cluster) as raw:
        await raw.say(word)
        await in_order(raw)
        await computing.is_answered()


async def in_order(raw: RawPrefill) -> None:
    """Wait until all that was said has been heard: a claim that must be refused comes last."""
    await raw.say(raw.claim("nobody", 7777))
    word = await raw.hear()
    assert (word["type"], word["generation"]) == ("abort", 7777)


@pytest.mark.parametrize("changes", [{"request": "other"}, {"incarnation": "e-2"}, {"rank": 1}])
async def test_kv_01_a_claim_for_what_is_anothers_is_refused(
    computing: Computing, changes: dict[str, Any]
) -> None:
    async with raw_prefill(computing.cluster) as raw:
        (rid,) = computing.cluster.decode_apps[0].node.requests
        await raw.say(replace(raw.claim(rid, 1), **changes))
        assert (await raw.hear())["type"] == "abort"
        await computing.is_answered()


async def test_out_of_order_words_end_their_own_connection(cluster: Cluster) -> None:
    """What only a decode node says."""
    async with raw_prefill(cluster) as raw:
        await raw.say(Grant("a", 1, 0, 0, 0, 8, 1.0))
        with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
            await raw.hear()
    await served(cluster)


async def test_a_captured_hello_proves_nothing_on_another_connection() -> None:
    """Each connection has a challenge of its own: what answered one, word for word, fails."""
    keys = {"cluster_key": SECRET}
    cluster = Cluster(slots=1, prefill_options=keys, decode_options=keys, router_options=keys)
    async with cluster.running():
        handshake = PrefillHandshake(hello_of(cluster), ClusterKey(SECRET))
        captured = b""
        for attempt in ("hello", "refused"):
            async with await connect(cluster) as stream:
                words: list[object] = []
                reader = FrameReader()
                while len(words) < 2:
                    for content in reader.feed(await stream.receive()):
                        words.append(content["type"])
                        if len(words) == 1:
                            if not captured:
                                answer = handshake.receive(content)
                                assert answer is not None
                                captured = encode_frame(answer)
                            await stream.send(captured)
                assert words == ["challenge", attempt]
        await served(cluster)


@pytest.mark.parametrize(
    ("refused", "status"),
    [
        pytest.param({}, 429, id="busy"),
        pytest.param({"max_len": 10_000}, 400, id="too long"),
        pytest.param({"layout": {"version": "another"}}, 409, id="layout"),
        pytest.param({"needs": ["telepathy"]}, 400, id="needs"),
    ],
)
@pytest.mark.parametrize("claimed_first", [True, False])
async def test_a_claim_is_refused_at_once_where_its_router_was(
    computing: Computing, refused: dict[str, Any], status: int, claimed_first: bool
) -> None:
    """Its KV cache has a place on its own node meanwhile, which the next one may need."""
    cluster = computing.cluster
    grant = {"rid": "cafe", "max_len": 9, "generation": FORETOLD + 7, **refused}

    async def reserve() -> int:
        origin, body = cluster.decode_nodes[0].origin, orjson.dumps(grant)
        async with cluster.client.request(origin, "POST", "/pd/reserve", (), body) as response:
            return response.status

    async with raw_prefill(cluster) as prefill:
        early, unknown = prefill.claim("cafe", FORETOLD + 7), prefill.claim("cafe", 9)
        if claimed_first:
            await prefill.say(early)
        assert await reserve() == status
        if not claimed_first:
            await prefill.say(early)
        await prefill.say(unknown)
        told = [await prefill.hear() for _ in range(2)]
    words = [(each["type"], each["generation"]) for each in told]
    assert words == [("abort", FORETOLD + 7), ("abort", 9)]
    await computing.is_answered()


@pytest.mark.parametrize("claimed", [True, False])
async def test_a_name_that_prefill_has_given_up_is_not_waited_for(
    cluster: Cluster, claimed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node grants by another one, and its router has prefill asked again."""
    await served(cluster)  # the router knows the node from now on
    named: list[int] = []

    def foretell(request: str, incarnation: str) -> HTTPGrant:
        named.append(FORETOLD + 7)
        return HTTPGrant(request, incarnation, FORETOLD + 7, 0, inf)

    monkeypatch.setattr(decode_call, "foretold_grant", foretell)
    async with raw_prefill(cluster) as raw:
        if claimed:
            await raw.say(raw.claim("any", FORETOLD + 7))
            await raw.say(Abort(FORETOLD + 7, "preempted"))
            assert (await raw.hear())["type"] == "released"
        else:
            await raw.say(Decline("any", raw.peer.incarnation, FORETOLD + 7, "no memory"))
            await in_order(raw)
        await served(cluster)
    assert named == [FORETOLD + 7]


async def test_a_claim_that_waits_is_not_made_twice(cluster: Cluster) -> None:
    async with raw_prefill(cluster) as raw:
        for _ in range(2):
            await raw.say(raw.claim("cafe", FORETOLD + 7))
        with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
            await raw.hear()
    await served(cluster)
