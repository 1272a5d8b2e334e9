"""Cases of the hand-over that need a whole cluster: what does not fit, leases, ids, overtaking."""

from __future__ import annotations

import logging
import re
import struct
from typing import TYPE_CHECKING, Any, NoReturn

import anyio
import anyio.lowlevel
import orjson
import pytest

from tests.pd.cluster import LIMIT, LONGEST, Answer, Cluster, ScriptedModel
from tests.pd.layouts import SlowlyPacked
from tests.pd.raw_prefill import raw_prefill
from tilert_engine.layouts.abc import Description
from tilert_engine.layouts.scripted import ScriptedLayout
from tilert_engine.scripted import Script
from tilert_stream.cluster.prefill_call import PrefillCall
from tilert_stream.http.client import Origin
from tilert_stream.http.errors import ClientGone
from tilert_stream.nodes.decode_node import REMEMBERED
from tilert_stream.nodes.hand_over.destination import Destination
from tilert_stream.nodes.prefill_node import HandOverDesk
from tilert_stream.testing import Gate
from tilert_transports.control.errors import GrantGone
from tilert_transports.control.messages import Decline
from tilert_transports.control.regions import LandingRegion

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from starlette.types import ASGIApp, Message

both = pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])
KEYS = [{"cluster_key": letter * 16} for letter in "ab"]


class OtherType(ScriptedLayout):
    """Rows as long as ours, of something else."""

    def describe(self) -> Description:
        return {**super().describe(), "dtype": "int64"}

    def sized(self, max_seq_len: int) -> OtherType:
        return OtherType(max_seq_len)


def like_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prefill node that says nothing of its caches, and meets no decode node beforehand."""

    async def stay(_desk: HandOverDesk, _to: Destination) -> None:
        await anyio.lowlevel.checkpoint()

    async def tells_nothing(_call: PrefillCall) -> None:
        await anyio.lowlevel.checkpoint()

    monkeypatch.setattr(HandOverDesk, "meet", stay)
    monkeypatch.setattr(PrefillCall, "layout", tells_nothing)


def mismatches() -> list[Any]:
    own, other = KEYS
    return [
        pytest.param(
            {"prefill_layout": OtherType(LONGEST)},
            ("dtype", "int64", "int32", "--kv-cache-dtype"),
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
    cluster = Cluster(prefill=Script(before_chunk=prefilled.append), slots=1, **made)
    async with cluster.running():
        for _ in range(2):  # the one slot is free again
            answer = await cluster.ask(stream=stream, max_tokens=9)
            assert (answer.status, answer.error) == (503, "kv_handshake_refused")
            assert [word for word in words if word not in answer.message] == []
            await cluster.idle()
    assert prefilled == []


@both
@pytest.mark.parametrize(("made", "words"), mismatches())
async def test_kv_06_what_does_not_fit_is_told_without_a_time_limit_where_nobody_met_before(
    made: dict[str, Any],
    words: tuple[str, ...],
    stream: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As behind vLLM, whose connector learns of a request when its prompt has been computed."""

    like_vllm(monkeypatch)
    cluster = Cluster(slots=1, **made)
    async with cluster.running():
        for _ in range(2):
            answer = await cluster.ask(stream=stream, max_tokens=9)
            # A stream's first token has left by then.
            assert (answer.status, answer.error) == (200 if stream else 503, "kv_handshake_refused")
            assert [word for word in words if word not in answer.message] == []
            assert not answer.whole
            await cluster.idle()
    assert "time" not in caplog.text


@both
async def test_kv_06_a_router_that_knows_prefills_layout_asks_for_no_prefill(
    stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its prefill node has told it; the decode node refuses the reservation."""
    heard = anyio.Event()
    ask = PrefillCall.layout
    asked: list[object] = []

    async def layout(call: PrefillCall) -> Mapping[str, object] | None:
        told = await ask(call)
        heard.set()
        return told

    async def prefill(call: PrefillCall, *_args: object) -> NoReturn:
        asked.append(call)
        raise AssertionError

    monkeypatch.setattr(PrefillCall, "layout", layout)
    monkeypatch.setattr(PrefillCall, "prefill", prefill)
    cluster = Cluster(decode_models=[ScriptedModel(Script(), layout=OtherType(LONGEST))])
    async with cluster.running():
        await heard.wait()
        answer = await cluster.ask(stream=stream, max_tokens=9)
        assert (answer.status, answer.error) == (503, "kv_handshake_refused")
        assert "dtype: ours is int64, theirs int32; give both nodes the same" in answer.message
        assert "--dtype" in answer.message
        await cluster.idle()
    assert asked == []


@both
@pytest.mark.parametrize("met", [True, False], ids=["met before", "not met"])
async def test_kv_06_other_pairs_are_unaffected(
    met: bool, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One decode node of two does not fit: it is passed over, if that is known in time."""
    if not met:
        like_vllm(monkeypatch)
    models = [
        ScriptedModel(Script(), layout=OtherType(LONGEST)),
        ScriptedModel(Script()),
    ]
    cluster = Cluster(decode_models=models)
    async with cluster.running():
        answers: list[Answer] = []
        for _ in range(4):
            answers.append(await cluster.ask(stream=stream, max_tokens=9))
            await cluster.idle()
    assert [answer.whole for answer in answers] == [met, True, True, True]
    if not met:
        assert answers[0].error == "kv_handshake_refused"


def another_end(ids: tuple[int, ...]) -> tuple[int, ...]:
    return (*ids[:-1], ids[-1] + 1)


def another_order(ids: tuple[int, ...]) -> tuple[int, ...]:
    return (ids[1], ids[0], *ids[2:])


@both
@pytest.mark.parametrize("mixed", [another_end, another_order])
async def test_kv_13_another_prompts_cache_is_never_decoded(
    mixed: Callable[[tuple[int, ...]], tuple[int, ...]],
    stream: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    imported: list[int] = []
    send = HandOverDesk.send
    wrong = [True]

    def mix_up(
        desk: HandOverDesk, request_id: str, ids: tuple[int, ...], kv: object, to: Destination
    ) -> None:
        send(desk, request_id, mixed(ids) if wrong.pop() else ids, kv, to)

    monkeypatch.setattr(HandOverDesk, "send", mix_up)
    cluster = Cluster(decode=[Script(before_import=imported.append)], slots=1)
    async with cluster.running():
        answer = await cluster.ask(stream=stream, max_tokens=9)
        assert (answer.status, answer.error) == (200 if stream else 502, "decode_failed")
        theirs = re.findall(
            r"a prompt of 3 tokens that ends in \d+ \(digest [0-9a-f]{16}\)", answer.message
        )
        assert len(set(theirs)) == 2, "both are named"
        await cluster.idle()
        assert imported == []
        wrong.append(False)
        assert (await cluster.ask(stream=stream, max_tokens=9)).whole
        await cluster.idle()


@both
async def test_kv_13_a_cache_that_lands_after_the_lease_is_awaited(stream: bool) -> None:
    """A reservation's time is for prefill; who has come with the first token waits by its own."""
    with Gate() as gate:
        cluster = Cluster(
            prefill_layout=SlowlyPacked(gate), decode_options={"reservation_ttl": 0.5}
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
        return response.status, orjson.loads(await response.read(65536, within=LIMIT))


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
    async with cluster.running():
        assert (await post(cluster, "/pd/cancel", rid="a1", attempt=7))[0] == 404
        status, answer = await post(cluster, "/pd/reserve", rid="a1", attempt=7, max_len=9)
        assert (status, code_of(answer)) == (410, "kv_grant_gone")
        assert cluster.held == {}
        assert (await post(cluster, "/pd/reserve", rid="a1", attempt=8, max_len=9))[0] == 200
        assert (await post(cluster, "/pd/cancel", rid="a1", attempt=8))[0] == 200
        assert cluster.held == {}


async def test_dis_04_a_cancel_ends_its_own_attempt_and_no_later_one() -> None:
    cluster = Cluster(slots=1)
    async with cluster.running():
        assert (await post(cluster, "/pd/reserve", rid="a1", attempt=8, max_len=9))[0] == 200
        assert (await post(cluster, "/pd/cancel", rid="a1", attempt=7))[0] == 404
        assert cluster.decode_apps[0].node.requests == ["a1"]
        assert (await post(cluster, "/pd/cancel", rid="a1"))[0] == 200, "TileRT's names none"
        assert cluster.held == {}


async def test_dis_04_what_was_given_up_before_it_came_is_forgotten_in_time() -> None:
    cluster = Cluster(slots=1)
    node = cluster.decode_apps[0].node
    for attempt in range(REMEMBERED + 1):
        assert not node.holds("a1", attempt)
    async with cluster.running():
        with pytest.raises(GrantGone, match="given up before its reservation came"):
            await node.promise("a1", 9, attempt=1)
        assert (await node.promise("a1", 9, attempt=0)).request == "a1"
        assert node.withdraw("a1")


async def test_dis_04_a_reservation_whose_router_has_gone_is_given_back() -> None:
    cluster = Cluster(slots=1)
    (app,) = cluster.decode_apps
    async with cluster.running():
        with pytest.raises(ClientGone):
            await call(app, "/pd/reserve", gone=True, rid="a1", max_len=9)
        assert cluster.held == {}


async def test_a_router_that_names_no_generation_is_served_by_the_id() -> None:
    """TileRT's own; what it names in place of that is the request."""
    cluster = Cluster(slots=1)
    async with cluster.running(), raw_prefill(cluster) as prefill:
        _, granted = await post(cluster, "/pd/reserve", rid="a1", max_len=9)
        await prefill.say(prefill.claim("a1", granted["generation"]))
        assert (await prefill.hear())["type"] == "grant"
        ids = struct.pack("<3i", 97, 98, 99)
        landing = cluster.ports[0].view(LandingRegion(granted["region"], 0, 1024))
        assert isinstance(landing, memoryview)
        landing[: len(ids)] = ids
        await prefill.say(prefill.commit(granted["generation"]))
        asked = {"rid": "a1", "first_token_id": 97, "max_tokens": 3, "stream": False}
        status, answer = await post(cluster, "/pd/decode", **asked)
        assert (status, answer["token_ids"]) == (200, [97, 98, 99])
        await cluster.idle()
        status, answer = await post(cluster, "/pd/decode", **asked)
        assert (status, code_of(answer)) == (410, "kv_grant_gone")


async def test_pd_14_why_prefill_gave_up_is_told_even_if_it_did_so_before_the_router_came() -> None:
    cluster = Cluster(slots=1)
    async with cluster.running(), raw_prefill(cluster) as prefill:
        _, granted = await post(cluster, "/pd/reserve", rid="a1", max_len=9)
        incarnation = prefill.peer.incarnation
        await prefill.say(Decline("a1", incarnation, granted["generation"], "no block is free"))
        await cluster.idle()
        status, answer = await post(
            cluster,
            "/pd/decode",
            rid="a1",
            generation=granted["generation"],
            first_token_id=97,
            max_tokens=3,
        )
        assert (status, code_of(answer)) == (502, "kv_transfer_failed")
        assert answer["error"].endswith("gave up: no block is free")


def code_of(answer: Any) -> str | None:
    """Of a flat error, or of OpenAI's."""
    error: Any = answer.get("error")
    code: str | None = answer.get("code") if isinstance(error, str) else error["code"]
    return code


@both
async def test_pd_07_one_token_asks_for_no_hand_over_and_nobody_warns(
    stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    cluster = Cluster(slots=1)
    async with cluster.running():
        requests: list[dict[str, Any]] = [
            {"max_tokens": 1},
            {"max_tokens": 9, "stop_token_ids": [97]},
        ]
        for given in requests:
            assert (await cluster.ask(stream=stream, **given)).whole
            await cluster.idle()
        # On the same connection: what was begun before has been answered by then.
        assert (await cluster.ask(stream=stream, max_tokens=9)).whole
        # Looked at before the nodes end, which cuts what prefill may still have on its way.
        said = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert said == []


@both
async def test_pd_05_pd_07_one_token_needs_no_kv_cache_and_leaves_no_slot(stream: bool) -> None:
    imported: list[int] = []
    cluster = Cluster(decode=[Script(before_import=imported.append)], slots=1)
    requests: list[tuple[dict[str, Any], str, str]] = [
        ({"max_tokens": 1}, "a", "length"),
        ({"max_tokens": 1, "stop_token_ids": [97]}, "", "stop"),
        ({"max_tokens": 9, "stop_token_ids": [97]}, "", "stop"),
    ]
    async with cluster.running():
        for given, text, reason in requests:
            if stream:
                given["stream_options"] = {"include_usage": True}
            answer = await cluster.ask(stream=stream, **given)
            assert answer == Answer(200, text, reason, 1, None, complete=True)
            await cluster.idle()
    assert imported == []


@both
@pytest.mark.parametrize(
    ("given", "status", "code"),
    [
        ({"logprobs": True, "top_logprobs": 2}, 400, "unsupported_parameter"),
        ({"response_format": {"type": "json_object"}}, 400, "unsupported_parameter"),
        ({"max_tokens": LONGEST - 2}, 400, "context_length_exceeded"),
    ],
)
async def test_pd_16_pd_18_kv_05_what_cannot_be_served_is_told_before_prefill(
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
