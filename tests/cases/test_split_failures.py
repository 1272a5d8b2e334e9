"""What a decode node refuses or fails at, as a client of the router's app gets it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import anyio
import orjson
import pytest

from tests.cases.ai_sdk import check_event
from tests.cases.asking import exchange
from tests.cases.sides import answering, routing_to
from tests.cases.test_tr import CLOSED, TOOLS
from tests.nodes.routing import Host, letters
from tilert_engine.scripted import Script
from tilert_stream.testing.pd_nodes import Answer, ScriptedDecodeNode, ScriptedPrefillNode

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

both = pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])


def flat(status: int, code: str, **headers: str) -> Answer:
    return Answer(status, orjson.dumps({"error": "by script", "code": code}), headers)


@both
@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(flat(429, "slots_busy", **{"retry-after": "3"}), id="429"),
        pytest.param(flat(400, "context_length_exceeded"), id="400"),
        pytest.param(flat(503, "not_ready"), id="503"),
    ],
)
async def test_err_05_what_decode_refuses_is_a_status(
    answer: Answer, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a prompt is computed, and never a 200 with nothing in it."""

    async def refuse(_fields: dict[str, Any]) -> Answer:
        return answer

    prefill = ScriptedPrefillNode()
    decode = ScriptedDecodeNode(hooks={"/pd/reserve": refuse})
    async with routing_to(prefill, decode, monkeypatch, queue_timeout=0) as app:
        asked = exchange(app, {"max_tokens": 3}, stream=stream)
        await asked.run()
    assert (asked.status, asked.complete) == (answer.status, True)
    assert asked.json.keys() == {"error"}
    assert asked.json["error"].keys() == {"message", "type", "param", "code"}
    headers = dict(asked.sent[0]["headers"])
    assert headers[b"content-type"] == b"application/json"
    if answer.status == 429:
        assert (headers[b"retry-after"], headers[b"retry-after-ms"]) == (b"3", b"3000")
    assert prefill.calls == []


@pytest.mark.parametrize("tokens", [0, 1, 3, 5])
@pytest.mark.parametrize(
    "end", [b'{"error":"the cache is full"}\n', b"", b'{"t":[9'], ids=["error", "eof", "half"]
)
async def test_err_01_err_03_a_failure_behind_text_is_one_event_and_a_cut(
    end: bytes, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the node's body ends as if it were whole, but without its last line."""
    decode = ScriptedDecodeNode(hooks={"/pd/decode": failing(end, tokens)})
    async with routing_to(ScriptedPrefillNode(), decode, monkeypatch) as app:
        asked = exchange(app, {"prompt": "abc", "max_tokens": 9}, stream=True)
        await asked.run()
    assert (asked.status, asked.complete) == (200, False)
    *others, failed, rest = asked.content.split(b"\n\n")
    assert rest == b""
    assert failed.startswith(b'data: {"error":{')
    event = orjson.loads(failed[6:])
    check_event(event)
    assert event.keys() == {"error"}
    assert event["error"].keys() == {"message", "type", "param", "code"}
    assert asked.text == "abcde"[: max(tokens, 1)], "the first one is prefill's"
    assert len(others) <= max(tokens, 1)
    for each in others:
        assert b'"finish_reason":null' in each
    assert b"usage" not in asked.content.replace(b'"usage":null', b"")
    assert b"[DONE]" not in asked.content


def failing(end: bytes, tokens: int) -> Any:
    lines = [{"t": [letters(index)]} for index in range(tokens)]

    async def fail(_fields: dict[str, Any]) -> Answer:
        return Answer(200, b"".join(orjson.dumps(line) + b"\n" for line in lines) + end)

    return fail


@pytest.mark.parametrize("tokens", [0, 1, 5])
@pytest.mark.parametrize(
    ("end", "code"),
    [
        pytest.param(b'{"error":"the cache is full"}\n', "decode_failed", id="error"),
        pytest.param(b"", "upstream_closed", id="eof"),
        pytest.param(b'{"t":[9', "upstream_closed", id="half"),
    ],
)
async def test_err_01_err_02_a_failure_before_anything_has_left_is_a_502(
    end: bytes, code: str, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an answer that is not streamed nothing leaves before its end."""
    decode = ScriptedDecodeNode(hooks={"/pd/decode": failing(end, tokens)})
    async with routing_to(ScriptedPrefillNode(), decode, monkeypatch) as app:
        asked = exchange(app, {"max_tokens": 9})
        await asked.run()
    assert (asked.status, asked.complete) == (502, True)
    assert asked.json.keys() == {"error"}
    assert asked.json["error"]["code"] == code


@both
async def test_err_01_a_node_that_dies_before_its_first_word(
    stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call that begins the answer is never answered."""
    hosts: list[Host] = []

    async def die(_fields: dict[str, Any]) -> None:
        hosts[1].kill()
        await anyio.sleep_forever()

    def prepare(*nodes: Host) -> None:
        hosts.extend(nodes)

    decode = ScriptedDecodeNode(hooks={"/pd/decode": die})
    async with routing_to(ScriptedPrefillNode(), decode, monkeypatch, prepare=prepare) as app:
        asked = exchange(app, {"max_tokens": 9}, stream=stream)
        await asked.run()
    assert (asked.status, asked.complete) == ((200, False) if stream else (502, True))
    error = asked.chunks[-1]["error"] if stream else asked.json["error"]
    assert error["code"] == "upstream_closed"
    if stream:
        assert asked.text == "a"
    assert b'"finish_reason":"' not in asked.content
    assert b"[DONE]" not in asked.content


@both
async def test_pd_18_a_padding_id_is_no_token(
    stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a batch with one, nothing is taken for an answer."""

    async def pad(_fields: dict[str, Any]) -> Answer:
        done = orjson.dumps({"done": True, "n": 3, "finish_reason": "stop"})
        return Answer(200, b'{"t":[97]}\n{"t":[98,-1]}\n' + done + b"\n")

    decode = ScriptedDecodeNode(hooks={"/pd/decode": pad})
    async with routing_to(ScriptedPrefillNode(), decode, monkeypatch) as app:
        asked = exchange(app, {"max_tokens": 9}, stream=stream)
        await asked.run()
    error = asked.chunks[-1]["error"] if stream else asked.json["error"]
    assert error["code"] == "upstream_invalid"
    assert (asked.status, asked.complete) == ((200, False) if stream else (502, True))
    assert b'"finish_reason":"' not in asked.content


class Listed:
    """A prefill node, and the key that each of its callers shows, by path."""

    def __init__(self, node: ScriptedPrefillNode) -> None:
        self.node = node
        self.keys: list[tuple[str, str | None]] = []
        self.listed = anyio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        key = headers.get(b"authorization")
        self.keys.append((scope["path"], None if key is None else key.decode()))
        await self.node(scope, receive, send)
        if scope["path"] == "/v1/models":
            self.listed.set()


async def test_pd_25_whose_key_goes_where(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The client's is checked here and goes no further; prefill gets the router's own, always."""
    caplog.set_level(logging.DEBUG)
    refusals = [Answer(401, orjson.dumps({"error": {"message": "Bad key sk-upstream"}}))]

    async def refuse_once(_fields: dict[str, Any]) -> Answer | None:
        return refusals.pop() if refusals else None

    prefill = Listed(ScriptedPrefillNode(before_answer=refuse_once))
    decode = ScriptedDecodeNode()
    options: dict[str, Any] = {"api_keys": ("sk-client",), "prefill_api_key": "sk-upstream"}
    async with routing_to(prefill, decode, monkeypatch, **options) as app:
        said: list[bytes] = []
        for key, status in (
            (b"", 401),
            (b"Bearer sk-other", 401),
            (b"Bearer sk-upstream", 401),
            (b"Bearer sk-client", 502),
            (b"Bearer sk-client", 200),
        ):
            asked = exchange(app, {"max_tokens": 3})
            asked.headers = [(b"authorization", key)]
            await asked.run()
            assert asked.status == status
            said.append(asked.content)
        await prefill.listed.wait()
    assert {key for _, key in prefill.keys} == {"Bearer sk-upstream"}
    assert {path for path, _ in prefill.keys} == {"/v1/models", "/v1/completions"}
    assert len(prefill.node.calls) == 2
    assert b"sk-" not in b"".join(said)
    assert "sk-" not in caplog.text


FORCED = {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "first"}}}
LACKING: list[tuple[str, dict[str, Any]]] = [
    ("response_format", {"response_format": {"type": "json_object"}}),
    ("response_format", {"prompt": "a", "response_format": {"type": "json_object"}}),
    ("structured_outputs", {"structured_outputs": {"regex": "a+"}}),
    ("tool_choice", FORCED),
    ("logprobs", {"logprobs": True, "top_logprobs": 2}),
    ("logprobs", {"prompt": "a", "logprobs": 1}),
    ("logit_bias", {"logit_bias": {"5": 2}}),
    ("presence_penalty", {"presence_penalty": 1}),
    ("frequency_penalty", {"frequency_penalty": 1}),
    ("repetition_penalty", {"repetition_penalty": 1.5}),
]


@both
@pytest.mark.parametrize("side", ["one", "split"])
async def test_pd_16_pd_18_pd_20_what_an_engine_cannot_do_goes_by_the_clients_own_name(
    side: str, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A 400 that names the field, before prefill."""
    chunks: list[int] = []
    script = Script(before_chunk=chunks.append)
    async with answering(side, script, monkeypatch, parser="hermes", template=CLOSED) as app:
        for name, fields in LACKING:
            asked = exchange(app, fields, stream=stream)
            await asked.run()
            error = asked.json["error"]
            assert (asked.status, error["param"]) == (400, name)
            assert error["code"] == "unsupported_parameter"
            assert error["message"].startswith(f"{name} is ")
    assert chunks == []
