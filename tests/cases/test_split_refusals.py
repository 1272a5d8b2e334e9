"""What prefill, or a decode node at the reservation, refuses or fails at, as a client gets it."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.lowlevel
import orjson
import pytest

from tests.cases.sides import routing_to
from tests.cases.test_split_prefill import always, asked_for, nodes
from tilert_stream.testing.pd_nodes import Answer

if TYPE_CHECKING:
    from tests.cases.asking import Exchange
    from tests.nodes.routing import Host

both = pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])


def openai(status: int, message: str, *, after: str = "", **fields: Any) -> Answer:
    body = orjson.dumps({"error": {"message": message, "type": "BadRequestError", **fields}})
    return Answer(status, body, {"retry-after": after} if after else {})


@both
async def test_pd_09_prefills_400_is_the_clients(
    stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked once, whether decode has been asked before or is asked at the same time."""
    refusal = openai(400, "min_p must be in [0, 1]", param="min_p", code=400)
    refusals = [None, refusal, refusal]

    async def refuse(_fields: dict[str, Any]) -> Answer | None:
        await anyio.lowlevel.checkpoint()
        return refusals.pop(0)

    prefill, decode = nodes(refuse)
    async with routing_to(prefill, decode, monkeypatch) as app:
        assert (await asked_for(app, {"max_tokens": 2}, stream=stream)).status == 200
        for count in (2, 3):
            asked = await asked_for(app, {"max_tokens": 9}, stream=stream)
            assert (asked.status, asked.complete) == (400, True)
            assert asked.json["error"] == {
                "message": "min_p must be in [0, 1]",
                "type": "invalid_request_error",
                "param": "min_p",
                "code": "invalid_value",
            }
            assert len(prefill.calls) == count
            while decode.held:
                await anyio.lowlevel.checkpoint()
    assert decode.paths().count("/pd/decode") == 1


STATUSES: Final = [
    pytest.param(openai(400, "bad"), 400, id="400"),
    pytest.param(openai(401, "no key"), 502, id="401"),
    pytest.param(openai(403, "no key"), 502, id="403"),
    pytest.param(
        openai(404, "no such model", param="model", code="model_not_found"), 404, id="404"
    ),
    pytest.param(openai(408, "slow"), 408, id="408"),
    pytest.param(openai(413, "big"), 413, id="413"),
    pytest.param(openai(422, "url"), 422, id="422"),
    pytest.param(openai(429, "queue", after="7"), 429, id="429"),
    pytest.param(openai(500, "boom"), 502, id="500"),
    pytest.param(openai(503, "starting", after="7"), 503, id="503"),
    pytest.param(openai(504, "late"), 504, id="504"),
    pytest.param(Answer(200, b"<html>"), 502, id="html"),
]


def check_error(asked: Exchange, status: int) -> dict[str, Any]:
    """A whole answer of that status, in OpenAI's form; its error object."""
    assert (asked.status, asked.complete) == (status, True)
    headers = dict(asked.sent[0]["headers"])
    assert headers[b"content-type"] == b"application/json"
    assert asked.json.keys() == {"error"}
    error: dict[str, Any] = asked.json["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["message"]
    return error


@both
@pytest.mark.parametrize("leg", ["prefill", "reserve"])
@pytest.mark.parametrize(("answer", "status"), STATUSES)
async def test_pd_10_what_a_client_gets_of_a_nodes_status(
    answer: Answer,
    status: int,
    leg: str,
    stream: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    prefill, decode = nodes(always(answer) if leg == "prefill" else None)
    if leg == "reserve":
        decode.hooks["/pd/reserve"] = always(answer)
    async with routing_to(prefill, decode, monkeypatch, queue_timeout=0) as app:
        asked = await asked_for(app, {"max_tokens": 9}, stream=stream)
    check_error(asked, status)
    headers = dict(asked.sent[0]["headers"])
    assert headers.get(b"retry-after") == (b"7" if status in (429, 503) else None)
    if answer.status in (401, 403):
        assert f"answered {answer.status}: look at its key" in caplog.text
    assert "/pd/decode" not in decode.paths()
    assert len(prefill.calls) == (leg == "prefill"), "asked once, or not at all"


@both
async def test_pd_10_a_path_that_prefill_does_not_have_is_the_operators_to_know(
    stream: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    prefill, decode = nodes(always(Answer(404, b'{"detail":"Not Found"}')))
    async with routing_to(prefill, decode, monkeypatch) as app:
        asked = await asked_for(app, {"max_tokens": 9}, stream=stream)
    assert check_error(asked, 502)["code"] == "upstream_refused"
    assert "answered 404" in caplog.text


@both
@pytest.mark.parametrize("leg", ["prefill", "reserve"])
@pytest.mark.parametrize(
    ("how", "status", "code"),
    [("refused", 503, "upstream_unreachable"), ("reset", 502, "upstream_closed")],
)
async def test_pd_10_what_a_client_gets_where_a_node_is_gone(
    leg: str, how: str, status: int, code: str, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts: list[Host] = []

    async def die(_fields: dict[str, Any]) -> None:
        hosts[leg == "reserve"].kill()
        await anyio.sleep_forever()

    deaf = socket.socket()
    deaf.bind(("127.0.0.1", 0))  # nobody listens

    def prepare(*both_nodes: Host) -> None:
        hosts.extend(both_nodes)
        if how == "refused":
            hosts[leg == "reserve"].port = deaf.getsockname()[1]

    prefill, decode = nodes(die if leg == "prefill" else None)
    if leg == "reserve":
        decode.hooks["/pd/reserve"] = die
    routing = routing_to(prefill, decode, monkeypatch, prepare=prepare, queue_timeout=0)
    async with routing as app:
        asked = await asked_for(app, {"max_tokens": 9}, stream=stream)
    deaf.close()
    error = check_error(asked, status)
    assert error["code"] == code
    assert "127.0.0.1" not in error["message"]


@both
async def test_pd_10_a_prefill_that_does_not_answer_is_a_504(
    stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(_fields: dict[str, Any]) -> None:
        await anyio.sleep_forever()

    prefill, decode = nodes(never)
    async with routing_to(prefill, decode, monkeypatch, prefill_timeout=0.1) as app:
        asked = await asked_for(app, {"max_tokens": 9}, stream=stream)
    assert check_error(asked, 504)["code"].endswith("timeout")
    assert "/pd/decode" not in decode.paths()


WHOLE: Final = orjson.dumps({"choices": [{"index": 0, "finish_reason": "length"}]})
MALFORMED: Final = {
    "not JSON": b"<html>",
    "truncated": WHOLE[:-7],
    "no choices": b"{}",
    "empty choices": b'{"choices":[]}',
    "no token id": WHOLE,
    "null logprobs": b'{"choices":[{"finish_reason":"length","logprobs":null}]}',
    "two tokens": b'{"choices":[{"finish_reason":"length","token_ids":[97,98]}]}',
    "a list": b"[]",
    "nothing": b"",
}


@both
@pytest.mark.parametrize("name", MALFORMED)
async def test_pd_11_what_a_client_gets_of_an_answer_that_is_none(
    name: str, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefill, decode = nodes(always(Answer(200, MALFORMED[name])))
    async with routing_to(prefill, decode, monkeypatch) as app:
        asked = await asked_for(app, {"max_tokens": 9}, stream=stream)
    assert check_error(asked, 502)["code"] == "upstream_invalid"
    assert decode.paths() == ["/pd/reserve", "/pd/cancel"]
