"""What a router's app says to prefill and to decode, as both get it over the wire."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.lowlevel
import orjson
import pytest

from tests.cases.asking import EOS, exchange
from tests.cases.sides import routing_to
from tests.nodes.routing import letters
from tilert_stream.testing.pd_nodes import Answer, ScriptedDecodeNode, ScriptedPrefillNode

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.cases.asking import Exchange
    from tilert_stream.asgi import App

    Hook = Callable[[dict[str, Any]], Awaitable[Answer | None]]

both = pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])
PROMPT: Final = [*b"abc"]
BENCH_CHAT: Final[dict[str, Any]] = {
    "model": "byte",
    "messages": [{"role": "user", "content": [{"type": "text", "text": "abc"}]}],
    "max_completion_tokens": 12,
    "stream": True,
    "stream_options": {"include_usage": True},
    "temperature": 0.0,
    "ignore_eos": True,
}
BENCH_COMPLETION: Final[dict[str, Any]] = {
    "model": "byte",
    "prompt": "abc",
    "repetition_penalty": 1.0,
    "max_tokens": 12,
    "logprobs": None,
    "stream": True,
    "stream_options": {"include_usage": True},
    "temperature": 0.0,
}
FOR_PREFILL_ALONE: Final = {
    "stream_options",
    "max_completion_tokens",
    "stop",
    "n",
    "best_of",
    "echo",
    "messages",
}
"""Fields that have no place in what prefill is asked; the prompt goes as token ids."""


def always(answer: Answer) -> Hook:
    async def hook(_fields: dict[str, Any]) -> Answer:
        await anyio.lowlevel.checkpoint()
        return answer

    return hook


def nodes(prefill: Hook | None = None) -> tuple[ScriptedPrefillNode, ScriptedDecodeNode]:
    node = ScriptedPrefillNode() if prefill is None else ScriptedPrefillNode(before_answer=prefill)
    return node, ScriptedDecodeNode(token=letters, slots=2)


async def asked_for(app: App, fields: dict[str, Any], *, stream: bool) -> Exchange:
    asked = exchange(app, fields, stream=stream)
    await asked.run()
    return asked


def asked_of_prefill(prefill: ScriptedPrefillNode) -> dict[str, Any]:
    """What its last call says, without what every call says."""
    call = prefill.calls[-1]
    assert (call["max_tokens"], call["stream"], call["prompt"]) == (1, False, PROMPT)
    assert FOR_PREFILL_ALONE.isdisjoint(call)
    return call


def asked_of_decode(decode: ScriptedDecodeNode) -> dict[str, Any]:
    """What its last ``/pd/decode`` says."""
    return [fields for path, fields in decode.calls if path == "/pd/decode"][-1]


@pytest.mark.parametrize("body", [BENCH_CHAT, BENCH_COMPLETION], ids=["openai-chat", "openai"])
async def test_pd_01_a_benchmark_is_served_and_told_its_usage(
    body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first time one after another, then with prefill and decode asked at once."""
    prefill, decode = nodes()
    async with routing_to(prefill, decode, monkeypatch) as app:
        for _ in range(2):
            asked = await asked_for(app, body, stream=True)
            assert (asked.status, asked.complete) == (200, True)
            call = asked_of_prefill(prefill)
            assert (call["temperature"], call["ignore_eos"]) == (0, body.get("ignore_eos", False))
            assert asked_of_decode(decode)["max_tokens"] == 12
            *_, finish, usage = asked.chunks
            assert finish["choices"][0]["finish_reason"] == "length"
            assert usage["choices"] == []
            assert usage["usage"] == {
                "prompt_tokens": 3,
                "completion_tokens": 12,
                "total_tokens": 15,
            }
            assert asked.content.endswith(b"data: [DONE]\n\n")


@both
@pytest.mark.parametrize(
    ("lengths", "decoded"),
    [
        ({"max_completion_tokens": 3000}, 3000),
        ({"max_tokens": 50}, 50),
        ({"max_tokens": 50, "max_completion_tokens": 3000}, 3000),
        ({"max_tokens": 3000, "max_completion_tokens": 50}, 50),
    ],
)
async def test_pd_02_the_length_is_decodes_alone(
    lengths: dict[str, int], decoded: int, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefill, decode = nodes()
    async with routing_to(prefill, decode, monkeypatch) as app:
        asked = await asked_for(app, lengths, stream=stream)
    asked_of_prefill(prefill)
    assert asked_of_decode(decode)["max_tokens"] == decoded
    usage = (asked.chunks[-1] if stream else asked.json)["usage"]
    assert usage["completion_tokens"] == decoded


@both
@pytest.mark.parametrize(("least", "sent"), [(100, 1), (1, 1), (0, None)])
@pytest.mark.parametrize("ignore_eos", [True, False])
async def test_pd_03_who_is_told_the_least_length(
    least: int, sent: int | None, ignore_eos: bool, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefill, decode = nodes()
    fields = {"max_tokens": 500, "min_tokens": least, "ignore_eos": ignore_eos}
    async with routing_to(prefill, decode, monkeypatch) as app:
        asked = await asked_for(app, fields, stream=stream)
    assert asked.status == 200
    call, order = asked_of_prefill(prefill), asked_of_decode(decode)
    assert (call.get("min_tokens"), call["ignore_eos"]) == (sent, ignore_eos)
    assert order["sampling"].get("min_tokens", 0) == least
    assert order["sampling"].get("ignore_eos", False) is ignore_eos
    assert order["max_tokens"] == 500


@both
async def test_pd_04_an_event_stream_is_a_502_however_long_it_goes_on(
    stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not one byte of it is waited for, and the connection is closed, which stops it."""
    prefill, decode = nodes()
    left = anyio.Event()

    async def streams(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] != "/v1/completions":
            await ScriptedPrefillNode.__call__(prefill, scope, receive, send)
            return
        await receive()
        kind = (b"content-type", b"text/event-stream; charset=utf-8")
        await send({"type": "http.response.start", "status": 200, "headers": [kind]})
        await send({"type": "http.response.body", "body": b"data: {}\n\n", "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass
        left.set()

    async with routing_to(streams, decode, monkeypatch) as app:
        asked = await asked_for(app, {"max_tokens": 9}, stream=stream)
        await left.wait()
    assert (asked.status, asked.complete) == (502, True)
    error = asked.json["error"]
    assert error["code"] == "upstream_invalid"
    assert error["message"].endswith("sent an event stream, although stream is false")
    assert "/pd/decode" not in decode.paths()


@both
@pytest.mark.parametrize("reason", ["stop", "length"])
async def test_pd_05_a_first_token_that_ends_the_answer_ends_it_at_once(
    reason: str, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However prefill calls that: asked one after another, and both at once."""
    choice = {"index": 0, "text": "", "finish_reason": reason, "token_ids": [EOS]}
    prefill, decode = nodes(always(Answer(200, orjson.dumps({"choices": [choice]}))))
    async with routing_to(prefill, decode, monkeypatch) as app:
        for _ in range(2):
            asked = await asked_for(app, {"max_tokens": 9}, stream=stream)
            assert (asked.status, asked.complete) == (200, True)
            body = asked.chunks[-2] if stream else asked.json
            assert body["choices"][0]["finish_reason"] == "stop"
            usage = (asked.chunks[-1] if stream else asked.json)["usage"]
            assert usage["completion_tokens"] == 1
            assert asked.text == "" if stream else body["choices"][0]["message"]["content"] == ""
            while decode.held:
                await anyio.lowlevel.checkpoint()
    assert decode.paths() == ["/pd/reserve", "/pd/cancel"] * 2


@both
async def test_pd_07_one_token_is_asked_for_without_a_hand_over(
    stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked one after another, and both at once: prefill has nobody to send its KV cache to."""
    prefill, decode = nodes()
    async with routing_to(prefill, decode, monkeypatch) as app:
        for length in (9, 1, 1):
            asked = await asked_for(app, {"max_tokens": length}, stream=stream)
            usage = (asked.chunks[-1] if stream else asked.json)["usage"]
            assert usage["completion_tokens"] == length
            choice = (asked.chunks[-2] if stream else asked.json)["choices"][0]
            assert choice["finish_reason"] == "length"
            assert ("kv_transfer_params" in prefill.calls[-1]) is (length > 1)
            while decode.held:
                await anyio.lowlevel.checkpoint()
    assert decode.paths().count("/pd/decode") == 1
