"""The event stream, byte for byte and through the decoders that clients have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx2
import openai
import orjson
import pytest

from tilert_stream.errors import EngineFault
from tilert_stream.events import Finished, PromptUsage, TextDelta
from tilert_stream.openai.envelope import Endpoint, Envelope
from tilert_stream.stages.sse import EncodeSSE
from tilert_stream.testing import assert_contract, make_scope

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from openai.types import Completion
    from openai.types.chat import ChatCompletionChunk

HELLO = (TextDelta("Hel", (1,), (3,)), TextDelta("lo", (2, 3), (1, 2)))
STOP = Finished("stop")
FAULT = Finished.failed(EngineFault("the engine failed this request", param=None))
KINDS: list[Endpoint] = ["chat", "completion"]


def envelope(kind: Endpoint = "chat", *, usage: bool = False, continuous: bool = False) -> Envelope:
    return Envelope(
        "feed",
        kind,
        "m",
        stream=True,
        include_usage=usage,
        continuous_usage=continuous,
        created=1764640000,
    )


def encode(
    envelope: Envelope,
    deltas: Iterable[TextDelta],
    outcome: Finished = STOP,
    prompt: PromptUsage | None = None,
    *,
    done_after_error: bool = False,
) -> list[bytes]:
    with make_scope() as scope:
        encoder = EncodeSSE(envelope, done_after_error=done_after_error)(scope)
        scope.usage = PromptUsage(3) if prompt is None else prompt
        items = [item for delta in deltas for item in encoder.feed(delta)]
        items += encoder.finish(outcome)
    assert all(isinstance(item, bytes) for item in items)
    return [item for item in items if isinstance(item, bytes)]


def events(items: Sequence[bytes]) -> Iterator[str]:
    """A plain EventSource parser (WHATWG HTML, 9.2.6): the data of each event."""
    text = b"".join(items).decode().replace("\r\n", "\n").replace("\r", "\n")
    data: list[str] = []
    for line in text.split("\n"):
        field, _, value = line.partition(":")
        if field == "data":
            data.append(value.removeprefix(" "))
        elif not line and data:
            yield "\n".join(data)
            data = []
        else:
            assert not line, f"a line that is no data: {line!r}"
    assert not data, "the last event has no blank line"


def chunks(items: Sequence[bytes]) -> list[Any]:
    """The JSON of every event; ``[DONE]`` must be the last and is left out."""
    seen = list(events(items))
    assert seen.pop() == "[DONE]"
    return [orjson.loads(data) for data in seen]


def read_chat(items: Sequence[bytes], *, strict: bool = True) -> list[ChatCompletionChunk]:
    with sdk(items, strict=strict) as client:
        stream = client.chat.completions.create(model="m", messages=[], stream=True)
        return list(stream)


def read_completion(items: Sequence[bytes]) -> list[Completion]:
    # Null finish reasons, which OpenAI itself sends, are an error in strict mode.
    with sdk(items, strict=False) as client:
        return list(client.completions.create(model="m", prompt="", stream=True))


def sdk(items: Sequence[bytes], *, strict: bool) -> openai.OpenAI:
    head = {"content-type": "text/event-stream"}
    answer = httpx2.Response(200, headers=head, content=b"".join(items))
    return openai.OpenAI(
        api_key="k",
        base_url="http://server/v1",
        max_retries=0,
        http_client=httpx2.Client(transport=httpx2.MockTransport(lambda _: answer)),
        _strict_response_validation=strict,
    )


HEAD = b'data: {"id":"chatcmpl-feed","object":"chat.completion.chunk","created":1764640000,'
COMPLETION_HEAD = b'data: {"id":"cmpl-feed","object":"text_completion","created":1764640000,'


def test_http_11_whole_chat_stream() -> None:
    deltas = (TextDelta("a\r\n\r\nb", (1,), (6,)), TextDelta("", (2,), (0,)), HELLO[1])
    assert encode(envelope(usage=True), deltas) == [
        HEAD + b'"model":"m","choices":[{"index":0,"delta":{"role":"assistant",'
        b'"content":"a\\r\\n\\r\\nb"},"finish_reason":null}]}\n\n',
        HEAD + b'"model":"m","choices":[{"index":0,"delta":{"content":"lo"},'
        b'"finish_reason":null}]}\n\n',
        HEAD
        + b'"model":"m","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
        + HEAD
        + b'"model":"m","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4,'
        b'"total_tokens":7}}\n\n'
        b"data: [DONE]\n\n",
    ]


def test_http_11_whole_completion_stream() -> None:
    assert encode(envelope("completion"), HELLO, Finished("stop", stop_reason="\n")) == [
        COMPLETION_HEAD + b'"model":"m","choices":[{"index":0,"text":"Hel","logprobs":null,'
        b'"finish_reason":null}]}\n\n',
        COMPLETION_HEAD + b'"model":"m","choices":[{"index":0,"text":"lo","logprobs":null,'
        b'"finish_reason":null}]}\n\n',
        COMPLETION_HEAD + b'"model":"m","choices":[{"index":0,"text":"","logprobs":null,'
        b'"finish_reason":"stop","stop_reason":"\\n"}]}\n\n'
        b"data: [DONE]\n\n",
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_contract(kind: Endpoint) -> None:
    def text_and_end(items: list[bytes]) -> object:
        seen = list(events(items))
        if seen[-1] != "[DONE]":
            return seen
        parsed = [orjson.loads(data) for data in seen[:-1]]
        return text_of(parsed), parsed[-2:]

    assert_contract(EncodeSSE(envelope(kind, usage=True)), join=text_and_end)


def text_of(parsed: Sequence[Any]) -> str:
    choices = [choice for chunk in parsed for choice in chunk["choices"]]
    return "".join(
        choice["delta"].get("content", "") if "delta" in choice else choice["text"]
        for choice in choices
    )


# --- what is sent when -----------------------------------------------------------------------


def test_tokens_without_text_send_nothing_before_the_first_text() -> None:
    with make_scope() as scope:
        encoder = EncodeSSE(envelope())(scope)
        assert list(encoder.feed(TextDelta("", (240,), (0,)))) == []
        assert list(encoder.feed(TextDelta("", (159,), (0,)))) == []
        (first,) = encoder.feed(TextDelta("é", (152,), (1,)))
    assert isinstance(first, bytes)
    assert b'"delta":{"role":"assistant","content":"\xc3\xa9"}' in first


def test_a_stream_without_text_sends_the_role_then_the_finish() -> None:
    items = encode(envelope(), [TextDelta("", (257,), (0,))])
    assert len(items) == 1
    role, finish = chunks(items)
    assert role["choices"] == [
        {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
    ]
    assert finish["choices"] == [{"index": 0, "delta": {}, "finish_reason": "stop"}]


def test_a_completion_without_text_is_its_finish() -> None:
    (finish,) = chunks(encode(envelope("completion"), []))
    assert finish["choices"][0] == {
        "index": 0,
        "text": "",
        "logprobs": None,
        "finish_reason": "stop",
    }


@pytest.mark.parametrize("stop_reason", ["END", 42])
def test_stop_reason_rides_on_the_finish(stop_reason: int | str) -> None:
    finish = chunks(encode(envelope(), HELLO, Finished("stop", stop_reason)))[-1]
    assert finish["choices"][0]["stop_reason"] == stop_reason


@pytest.mark.parametrize("kind", KINDS)
def test_a_cancelled_request_gets_nothing(kind: Endpoint) -> None:
    assert encode(envelope(kind, usage=True), [], Finished("cancelled")) == []


# --- usage -----------------------------------------------------------------------------------

BATCHES = (1, 4, 4, 3)


def batches() -> list[TextDelta]:
    return [TextDelta("x" * n, tuple(range(n)), tuple(range(1, n + 1))) for n in BATCHES]


@pytest.mark.parametrize("kind", KINDS)
def test_met_04_continuous_usage_counts_tokens(kind: Endpoint) -> None:
    seen = chunks(encode(envelope(kind, usage=True, continuous=True), batches()))
    counts = [chunk["usage"]["completion_tokens"] for chunk in seen]
    assert counts == [1, 5, 9, 12, 12, 12]
    assert [chunk["usage"]["total_tokens"] for chunk in seen] == [n + 3 for n in counts]
    assert seen[-1]["choices"] == []


def test_met_04_tokens_without_text_count_on_the_next_chunk() -> None:
    deltas = [TextDelta("", (1, 2), (0, 0)), TextDelta("a", (3,), (1,))]
    seen = chunks(encode(envelope(usage=True, continuous=True), deltas))
    assert [chunk["usage"]["completion_tokens"] for chunk in seen] == [3, 3, 3]


def test_met_06_usage_is_one_chunk_of_its_own_where_it_is_asked_for() -> None:
    seen = chunks(encode(envelope(usage=True), HELLO))
    assert [len(chunk["choices"]) for chunk in seen] == [1, 1, 1, 0]
    assert seen[-2]["choices"][0]["finish_reason"] == "stop"
    assert seen[-1]["usage"] == {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}


@pytest.mark.parametrize("kind", KINDS)
def test_met_06_no_usage_where_it_is_not_asked_for(kind: Endpoint) -> None:
    seen = chunks(encode(envelope(kind), HELLO))
    assert all(chunk["choices"] for chunk in seen)
    assert not any("usage" in chunk for chunk in seen)


@pytest.mark.parametrize("kind", KINDS)
def test_met_08_content_chunks_have_no_usage(kind: Endpoint) -> None:
    seen = chunks(encode(envelope(kind, usage=True), batches()))
    assert ["usage" in chunk for chunk in seen] == [False] * 5 + [True]


@pytest.mark.parametrize(("cached", "details"), [(None, None), (0, 0), (6144, 6144), (8192, 8192)])
def test_met_11_cached_tokens_are_prefills(cached: int | None, details: int | None) -> None:
    usage = chunks(encode(envelope(usage=True), HELLO, prompt=PromptUsage(8193, cached)))[-1][
        "usage"
    ]
    assert usage.get("prompt_tokens_details") == (
        None if details is None else {"cached_tokens": details}
    )


@pytest.mark.parametrize("count", [1, 2, 3, 16])
def test_met_12_every_token_is_counted_once(count: int) -> None:
    deltas = [TextDelta("H", (72,), (1,))] + [TextDelta("i", (73,), (1,))] * (count - 1)
    seen = chunks(encode(envelope(usage=True), deltas, Finished("length")))
    assert text_of(seen) == "H" + "i" * (count - 1)
    assert seen[-1]["usage"]["completion_tokens"] == count
    assert seen[-2]["choices"][0]["finish_reason"] == "length"


def test_met_13_four_tokens_of_one_character() -> None:
    deltas = [TextDelta("", (byte,), (0,)) for byte in (0xF0, 0x9F, 0x98)]
    deltas.append(TextDelta("😀", (0x80,), (1,)))
    seen = chunks(encode(envelope(usage=True), deltas, Finished("length")))
    assert text_of(seen) == "😀"
    assert len(seen) == 3
    assert seen[-1]["usage"]["completion_tokens"] == 4
    assert seen[-2]["choices"][0]["finish_reason"] == "length"


# --- envelope and schema ---------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_met_15_one_envelope(kind: Endpoint) -> None:
    seen = chunks(encode(envelope(kind, usage=True, continuous=True), batches()))
    prefix, name = (
        ("chatcmpl", "chat.completion.chunk") if kind == "chat" else ("cmpl", "text_completion")
    )
    assert {chunk["id"] for chunk in seen} == {f"{prefix}-feed"}
    assert {chunk["created"] for chunk in seen} == {1764640000}
    assert {chunk["model"] for chunk in seen} == {"m"}
    assert {chunk["object"] for chunk in seen} == {name}


@pytest.mark.parametrize("continuous", [False, True])
def test_tr_07_the_strict_sdk_reads_every_chunk(continuous: bool) -> None:
    items = encode(envelope(usage=True, continuous=continuous), HELLO, Finished("length"))
    seen = read_chat(items)
    assert [chunk.choices[0].delta.content for chunk in seen[:2]] == ["Hel", "lo"]
    assert [chunk.choices[0].delta.role for chunk in seen[:3]] == ["assistant", None, None]
    assert seen[2].choices[0].finish_reason == "length"
    assert seen[3].choices == []
    assert seen[3].usage is not None
    assert seen[3].usage.total_tokens == 6


def test_tr_07_absent_keys_instead_of_empty_ones() -> None:
    seen = chunks(encode(envelope(usage=True), HELLO))
    choices = [choice for chunk in seen for choice in chunk["choices"]]
    assert [choice["index"] for choice in choices] == [0, 0, 0]
    assert [sorted(choice["delta"]) for choice in choices] == [
        ["content", "role"],
        ["content"],
        [],
    ]
    assert all("usage" not in chunk for chunk in seen[:-1])


def test_the_sdk_reads_completions() -> None:
    seen = read_completion(encode(envelope("completion", usage=True), HELLO))
    assert "".join(chunk.choices[0].text for chunk in seen[:-1]) == "Hello"
    assert seen[-2].choices[0].finish_reason == "stop"
    assert seen[-1].usage is not None
    assert seen[-1].usage.completion_tokens == 3


# --- characters that some clients take for line ends ------------------------------------------

BREAKS = "x\u2028y\u0085z\u2029\r\n\x0b\x0c\x1c\x1d\x1e"


@pytest.mark.parametrize("kind", KINDS)
def test_utf_12_no_character_but_the_framing_ends_a_line(kind: Endpoint) -> None:
    items = encode(envelope(kind), [TextDelta(BREAKS, (1,), (len(BREAKS),))])
    text = b"".join(items).decode()
    assert text.splitlines() == text.split("\n")[:-1]
    assert text_of(chunks(items)) == BREAKS
    assert b"x\\u2028y\\u0085z\\u2029" in items[0]


def test_utf_12_through_the_sdk() -> None:
    seen = read_chat(encode(envelope(), [TextDelta(BREAKS, (1,), (len(BREAKS),))]))
    assert seen[0].choices[0].delta.content == BREAKS


def test_utf_12_in_an_error_and_in_the_model_name() -> None:
    failed = Finished.failed(EngineFault(BREAKS, param=BREAKS))
    items = encode(envelope(), HELLO[:1], failed) + encode(
        Envelope("feed", "chat", BREAKS, stream=True), HELLO
    )
    text = b"".join(items).decode()
    assert text.splitlines() == text.split("\n")[:-1]


# --- errors ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_err_02_a_failure_is_no_finish_reason(kind: Endpoint) -> None:
    seen = list(events(encode(envelope(kind, usage=True), HELLO, FAULT)))
    assert "[DONE]" not in seen
    parsed = [orjson.loads(data) for data in seen]
    assert [list(chunk) for chunk in parsed[2:]] == [["error"]]
    choices = [choice for chunk in parsed[:2] for choice in chunk["choices"]]
    assert [choice["finish_reason"] for choice in choices] == [None, None]
    assert text_of(parsed[:2]) == "Hello"


def test_err_03_error_event_is_the_nested_object() -> None:
    seen = list(events(encode(envelope(), HELLO[:1], FAULT)))
    assert orjson.loads(seen[-1]) == {
        "error": {
            "message": "the engine failed this request",
            "type": "server_error",
            "param": None,
            "code": "engine_fault",
        }
    }


@pytest.mark.parametrize("strict", [False, True])
def test_err_03_the_sdk_raises(strict: bool) -> None:
    items = encode(envelope(), HELLO[:1], FAULT)
    with pytest.raises(openai.APIError, match="the engine failed this request") as caught:
        read_chat(items, strict=strict)
    assert (caught.value.code, caught.value.type) == ("engine_fault", "server_error")


def test_done_after_error() -> None:
    items = encode(envelope(usage=True), HELLO, FAULT, done_after_error=True)
    assert len(items) == 3
    error, done = list(events(items))[2:]
    assert list(orjson.loads(error)) == ["error"]
    assert done == "[DONE]"
