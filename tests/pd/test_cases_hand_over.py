"""Cases of the hand-over that need a whole cluster: what does not fit, leases, ids, overtaking."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import orjson
import pytest

from tests.pd.cluster import LONGEST, Answer, Cluster
from tilert_engine.layouts.abc import Description
from tilert_engine.layouts.scripted import ScriptedLayout
from tilert_engine.scripted import Script
from tilert_stream.http.client import Origin
from tilert_stream.http.errors import ClientGone
from tilert_stream.testing import Gate

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message

both = pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])
KEYS = [{"cluster_key": letter * 16} for letter in "ab"]


class OtherType(ScriptedLayout):
    """Rows as long as ours, of something else."""

    def describe(self) -> Description:
        return {**super().describe(), "dtype": "int64"}

    def sized(self, max_seq_len: int) -> OtherType:
        return OtherType(max_seq_len)


class SlowlyPacked(ScriptedLayout):
    """A KV cache that waits at a gate before it leaves."""

    def __init__(self, gate: Gate) -> None:
        super().__init__(LONGEST)
        self._gate = gate

    def pack(self, kv: object, staging: memoryview, rank: int = 0) -> int:
        self._gate.pass_through(0)
        return super().pack(kv, staging, rank)

    def sized(self, max_seq_len: int) -> SlowlyPacked:
        assert max_seq_len == LONGEST
        return self


def mismatches() -> list[Any]:
    own, other = KEYS
    return [
        pytest.param(
            {"prefill_layout": OtherType(LONGEST)},
            ("layout.dtype", "int64", "int32", "--kv-cache-dtype"),
            id="dtype",
        ),
        pytest.param(
            {"prefill_options": {"transport": "shm"}},
            ("transport", "shm", "tcp", "--transport"),
            id="transport",
        ),
        pytest.param(
            {"prefill_options": other, "decode_options": own, "router_options": own},
            ("cluster key is another one", "--cluster-key"),
            id="key",
        ),
        pytest.param(
            {"decode_options": own, "router_options": own},
            ("no cluster key", "--cluster-key"),
            id="no key",
        ),
    ]


@both
@pytest.mark.parametrize(("made", "words"), mismatches())
async def test_kv_06_what_does_not_fit_is_a_503_before_a_prompt_is_computed(
    made: dict[str, Any], words: tuple[str, ...], stream: bool
) -> None:
    prefilled: list[int] = []
    given: dict[str, Any] = {
        **made,
        "router_options": {"kv_timeout": 3.0, **made.get("router_options", {})},
    }
    cluster = Cluster(
        prefill=Script(before_chunk=prefilled.append),
        slots=1,
        **given,
    )
    async with cluster.running():
        for _ in range(2):  # the one slot is free again
            answer = await cluster.ask(stream=stream, max_tokens=9)
            assert answer.status == 503
            assert [word for word in words if word not in answer.message] == []
            await cluster.idle()
    assert prefilled == []


@both
async def test_kv_13_a_cache_that_lands_after_the_lease_is_awaited(stream: bool) -> None:
    """A reservation's time is for prefill; who has come with the first token waits by its own."""
    with Gate() as gate:
        cluster = Cluster(
            prefill_layout=SlowlyPacked(gate), decode_options={"reservation_ttl": 0.05}
        )
        answers: list[Answer] = []
        async with cluster.running():
            node = cluster.decode_apps[0].node
            async with anyio.create_task_group() as tasks:

                async def ask() -> None:
                    answers.append(await cluster.ask(stream=stream, max_tokens=9))

                tasks.start_soon(ask)
                await gate.arrival()
                while not (answers or cluster.decode_apps[0].service.ledger.counts):
                    await anyio.lowlevel.checkpoint()
                # One that nobody comes for was granted later, and is over: so would the other be.
                await node.promise("later", 9)
                while "later" in node.requests:
                    await anyio.lowlevel.checkpoint()
                gate.open()
            await cluster.idle()
    assert [(answer.text, answer.finish_reason) for answer in answers] == [("abcabcabc", "length")]


async def test_kv_11_a_request_id_is_not_reserved_while_it_decodes() -> None:
    """Its landing region is free by then, its slot is not; a cancel names the id alone."""
    found: list[tuple[int, Any]] = []
    with Gate() as gate:
        cluster = Cluster(decode=[Script(before_chain=gate.pass_through)], slots=3)
        async with cluster.running(), anyio.create_task_group() as tasks:
            tasks.start_soon(ask_one, cluster)
            await gate.arrival()
            (rid,) = cluster.decode_apps[0].node.requests
            found.append(await post(cluster, "/pd/reserve", rid=rid, max_len=9))
            gate.open()
        ((status, answer),) = found
        assert (status, answer.get("error", {}).get("code")) == (409, "request_in_use")
        await cluster.idle()


async def ask_one(cluster: Cluster) -> None:
    assert (await cluster.ask(max_tokens=3)).whole


async def post(cluster: Cluster, path: str, **fields: Any) -> tuple[int, Any]:
    origin = Origin.parse(f"http://127.0.0.1:{cluster.decode_nodes[0].port}")
    async with cluster.client.request(origin, "POST", path, (), orjson.dumps(fields)) as response:
        return response.status, orjson.loads(await response.read(65536, within=5))


async def call(app: ASGIApp, path: str, *, gone: bool = False, **fields: Any) -> None:
    """One request to an app without a socket between; ``gone``: nobody is left to answer."""

    async def receive() -> Message:
        await anyio.lowlevel.checkpoint()
        return {"type": "http.request", "body": orjson.dumps(fields), "more_body": False}

    async def send(_message: Message) -> None:
        await anyio.lowlevel.checkpoint()
        if gone:
            raise ClientGone("the client closed the connection")

    scope: dict[str, Any] = {
        "type": "http",
        "method": "POST",
        "path": path,
        "headers": [],
        "query_string": b"",
    }
    await app(scope, receive, send)


async def test_dis_04_a_cancel_that_overtakes_its_reservation_finds_it() -> None:
    """The client leaves while its slot is being reserved; both are on connections of their own."""
    cluster = Cluster(slots=1)
    (app,) = cluster.decode_apps
    async with cluster.running():
        async with anyio.create_task_group() as tasks:
            began = anyio.Event()

            async def cancel() -> None:
                began.set()
                await call(app, "/pd/cancel", rid="a1")

            tasks.start_soon(cancel)
            await began.wait()
            await call(app, "/pd/reserve", rid="a1", max_len=9)
        assert cluster.held == {}


async def test_dis_04_a_reservation_whose_router_has_gone_is_given_back() -> None:
    cluster = Cluster(slots=1)
    (app,) = cluster.decode_apps
    async with cluster.running():
        with pytest.raises(ClientGone):
            await call(app, "/pd/reserve", gone=True, rid="a1", max_len=9)
        assert cluster.held == {}


@both
async def test_pd_05_pd_07_one_token_needs_no_kv_cache_and_leaves_no_slot(stream: bool) -> None:
    imported: list[int] = []
    cluster = Cluster(decode=[Script(before_import=imported.append)], slots=1)
    async with cluster.running():
        for given, text, reason in (
            ({"max_tokens": 1}, "a", "length"),
            ({"max_tokens": 1, "stop_token_ids": [97]}, "", "stop"),
            ({"max_tokens": 9, "stop_token_ids": [97]}, "", "stop"),
        ):
            answer = await cluster.ask(
                stream=stream,
                **({"stream_options": {"include_usage": True}} if stream else {}),
                **given,
            )
            assert answer == Answer(200, text, reason, 1, None, complete=True)
            await cluster.idle()
    assert imported == []


@both
@pytest.mark.parametrize(
    ("given", "status", "code"),
    [
        ({"n": 2}, 400, "unsupported_parameter"),
        ({"logprobs": True, "top_logprobs": 2}, 400, "unsupported_parameter"),
        ({"response_format": {"type": "json_object"}}, 400, "unsupported_parameter"),
        ({"max_tokens": LONGEST - 2}, 400, "context_length_exceeded"),
    ],
)
async def test_pd_15_pd_16_pd_18_kv_05_what_cannot_be_served_is_told_before_prefill(
    given: dict[str, Any], status: int, code: str, stream: bool
) -> None:
    prefilled: list[int] = []
    cluster = Cluster(prefill=Script(before_chunk=prefilled.append), slots=1)
    async with cluster.running():
        answer = await cluster.ask(stream=stream, **given)
        assert (answer.status, answer.error) == (status, code)
        await cluster.idle()
        assert (await cluster.ask(stream=stream, max_tokens=LONGEST - 3)).whole
    assert len(prefilled) == 1
