"""Reasoning and tool calls, through the whole app: what clients get, streamed and plain."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import orjson
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tests.cases.ai_sdk import check_event
from tests.cases.asking import EOS, ByteApp, Exchange, batches, exchange, says
from tilert_engine.scripted import Script
from tilert_stream.parsers.glm47 import GLM47
from tilert_stream.parsers.hermes import HERMES
from tilert_stream.parsers.think import THINKING

both = pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])

OPEN = "{% for m in messages %}{{ m.content }}{% endfor %}{{ tools and '' }}<think>\n"
"""A template that leaves reasoning open."""
CLOSED = "{% for m in messages %}{{ m.content }}{% endfor %}{{ tools and '' }}>"
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("first", "second")
]
ARGUMENTS = '{"a": {"b": "}\\"{", "c": [1, {"d": "😀é"}]}}'


def call(name: str, arguments: str = "{}") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


@dataclass
class Answer:
    """What a client has put together."""

    content: str = ""
    reasoning: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    finish_reason: str = ""
    usage: dict[str, Any] = field(default_factory=dict[str, Any])


def app_that_says(text: str, *, template: str = CLOSED, chain: int = 1, **options: Any) -> ByteApp:
    options = {"parser": HERMES} | options
    script = Script(token=says(text.encode()), chain=batches(*[chain] * 400))
    return ByteApp(script, template=template, **options)


async def answer(app: ByteApp, fields: dict[str, Any], *, stream: bool) -> Answer:
    asked = exchange(app, {"max_tokens": 1000} | fields, stream=stream)
    async with app.lifespan():
        await asked.run()
    assert (asked.status, asked.complete) == (200, True), asked.content
    return joined(asked) if stream else whole(asked)


def whole(asked: Exchange) -> Answer:
    """The plain answer, which has to be what the SDK's type says."""
    body = asked.json
    ChatCompletion.model_validate(body, strict=True)
    (choice,) = body["choices"]
    message = choice["message"]
    assert message.get("reasoning_content") == message.get("reasoning")
    assert message.get("tool_calls") != [], "absent, not empty"
    calls = message.get("tool_calls", [])
    return Answer(
        message["content"] or "",
        message.get("reasoning") or "",
        calls,
        choice["finish_reason"],
        body["usage"],
    )


def joined(asked: Exchange) -> Answer:
    """The streamed answer, put together as clients do; each chunk is checked on the way."""
    seen = Answer()
    roles = 0
    *chunks, usage = asked.chunks
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk, strict=True)
        check_event(chunk)
        (choice,) = chunk["choices"]
        delta = choice["delta"]
        roles += delta.get("role") == "assistant"
        assert roles == 1, "the role is in the first chunk, and in no other"
        assert all(value not in ([], None) for value in delta.values()), "absent, not empty"
        seen.content += delta.get("content", "")
        seen.reasoning += delta.get("reasoning", "")
        assert delta.get("reasoning") == delta.get("reasoning_content")
        for part in delta.get("tool_calls", ()):
            put_together(seen.calls, part)
        seen.finish_reason = choice["finish_reason"] or ""
    ChatCompletionChunk.model_validate(usage, strict=True)
    check_event(usage)
    assert usage["choices"] == []
    seen.usage = usage["usage"]
    return seen


def put_together(calls: list[dict[str, Any]], part: dict[str, Any]) -> None:
    if part["index"] == len(calls):
        assert part["type"] == "function"
        assert part["id"]
        assert part["function"]["name"]
        kept = {name: value for name, value in part.items() if name != "index"}
        calls.append(kept | {"function": dict(part["function"])})
    else:
        assert part.keys() == {"index", "function"}, "id, type and name come once"
        assert part["function"].keys() == {"arguments"}
        calls[part["index"]]["function"]["arguments"] += part["function"]["arguments"]


def without_ids(calls: list[dict[str, Any]]) -> list[Any]:
    return [{name: value for name, value in call.items() if name != "id"} for call in calls]


@pytest.mark.parametrize("chain", [1, 3, 400])
@both
async def test_tr_01_the_end_of_reasoning_never_leaks(stream: bool, chain: int) -> None:
    for text, reasoning, content in (
        ("a</think>b", "a", "b"),
        ("a</thin g</think>Hi", "a</thin g", "Hi"),
        ("a</thin g", "a</thin g", ""),
        ("a</think>Hi</thi", "a", "Hi</thi"),
    ):
        app = app_that_says(text, template=OPEN, chain=chain, parser=THINKING)
        seen = await answer(app, {}, stream=stream)
        assert (seen.reasoning, seen.content, seen.finish_reason) == (reasoning, content, "stop")


@both
async def test_tr_01_at_all_cut_points(stream: bool) -> None:
    """In every split into one, two or three batches behind prefill's token."""
    for text, reasoning, content in (
        ("a</think>b", "a", "b"),
        ("</think>Hi", "", "Hi"),
        ("a</thin g", "a</thin g", ""),
    ):
        for cuts in combinations(range(1, 11), 2):
            sizes = [cuts[0], cuts[1] - cuts[0], 400]
            script = Script(token=says(text.encode()), chain=batches(*sizes))
            app = ByteApp(script, template=OPEN, parser=THINKING)
            seen = await answer(app, {}, stream=stream)
            assert (seen.reasoning, seen.content) == (reasoning, content)


@pytest.mark.parametrize("chain", [1, 7])
@both
async def test_tr_03_parallel_calls_have_their_own_index_and_id(stream: bool, chain: int) -> None:
    text = f"Both.\n{call('first')}\n{call('second', ARGUMENTS)}"
    app = app_that_says(text, chain=chain)
    seen = await answer(app, {"tools": TOOLS}, stream=stream)
    assert [call["function"]["name"] for call in seen.calls] == ["first", "second"]
    assert len({call["id"] for call in seen.calls}) == 2
    assert (seen.content, seen.finish_reason) == ("Both.", "tool_calls")


@pytest.mark.parametrize("chain", [1, 2, 5, 400])
async def test_tr_04_joined_arguments_are_those_of_the_plain_answer(chain: int) -> None:
    text = call("first", ARGUMENTS)
    streamed = await answer(app_that_says(text, chain=chain), {"tools": TOOLS}, stream=True)
    plain = await answer(app_that_says(text, chain=chain), {"tools": TOOLS}, stream=False)
    assert without_ids(streamed.calls) == without_ids(plain.calls)
    (made,) = plain.calls
    assert made["type"] == "function"
    assert orjson.loads(made["function"]["arguments"]) == orjson.loads(ARGUMENTS)
    assert plain.content == ""


@both
async def test_tr_05_finish_reasons(stream: bool) -> None:
    text = call("first", ARGUMENTS)
    app = app_that_says(text)
    assert (await answer(app, {"tools": TOOLS}, stream=stream)).finish_reason == "tool_calls"
    for cut in (30, len(text.encode()) - 14, len(text.encode())):
        seen = await answer(app, {"tools": TOOLS, "max_tokens": cut}, stream=stream)
        assert seen.finish_reason == "length"
    broken = app_that_says(call("first", '{"a": yes}'))
    assert (await answer(broken, {"tools": TOOLS}, stream=stream)).finish_reason == "stop"


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "first"}}]
)
async def test_tr_05_a_forced_call_is_refused_by_name(choice: object) -> None:
    """Nothing holds the answer to a call; the capability is what will change that."""
    app = app_that_says("")
    asked = exchange(app, {"tools": TOOLS, "tool_choice": choice})
    async with app.lifespan():
        await asked.run()
    error = asked.json["error"]
    assert (asked.status, error["param"]) == (400, "tool_choice")
    assert error["code"] == "unsupported_parameter"
    assert "grammar" in error["message"]


async def test_tr_07_every_chunk_is_of_the_sdk_s_type() -> None:
    """And of the AI SDK's: ``joined`` checks each, the one with usage, too.

    Absent keys instead of empty ones, one role, index always.
    """
    text = f"<think>\nWhy.\n</think>\n\nSo.\n{call('first', ARGUMENTS)}"
    seen = await answer(app_that_says(text), {"tools": TOOLS}, stream=True)
    assert (seen.reasoning, seen.content, len(seen.calls)) == ("Why.", "So.", 1)


@both
async def test_met_02_reasoning_is_streamed_and_counted(stream: bool) -> None:
    """200 tokens of reasoning, then none or five of content."""
    thought = "t" * 192
    for text, content in ((thought + "more and more", ""), (thought + "</think>Hello", "Hello")):
        app = app_that_says(text, template=OPEN, parser=THINKING)
        tokens = 200 if not content else 205
        seen = await answer(app, {"max_tokens": tokens}, stream=stream)
        assert seen.content == content
        assert seen.usage["completion_tokens"] == tokens
        assert seen.usage["completion_tokens_details"] == {"reasoning_tokens": 200}
        assert seen.finish_reason == "length"


async def test_met_02_each_token_of_reasoning_is_a_chunk() -> None:
    app = app_that_says("abc</think>d", template=OPEN, parser=THINKING)
    asked = exchange(app, {"max_tokens": 100}, stream=True)
    async with app.lifespan():
        await asked.run()
    deltas = [chunk["choices"][0]["delta"] for chunk in asked.chunks if chunk["choices"]]
    assert deltas == [
        {"role": "assistant", "reasoning_content": "a", "reasoning": "a"},
        {"reasoning_content": "b", "reasoning": "b"},
        {"reasoning_content": "c", "reasoning": "c"},
        {"content": "d"},
        {},
    ]


@pytest.mark.parametrize("count", [1, 2, 3, 16])
@both
async def test_met_12_reasoning_tokens_have_the_first_token(stream: bool, count: int) -> None:
    app = app_that_says("abcdefghijklmnopqrstuvwxyz", template=OPEN, parser=THINKING)
    seen = await answer(app, {"max_tokens": count}, stream=stream)
    assert seen.reasoning == "abcdefghijklmnopqrstuvwxyz"[:count]
    assert seen.usage["completion_tokens"] == count
    assert seen.usage["completion_tokens_details"]["reasoning_tokens"] == count


@both
async def test_stp_04_what_a_stop_string_holds_goes_through_the_parser(stream: bool) -> None:
    """A stop of 40 characters that never matches, and an end with a marker in its window."""
    stop = "</think>" + "x" * 32
    app = app_that_says("why</think>", template=OPEN, parser=THINKING)
    seen = await answer(app, {"stop": stop}, stream=stream)
    assert (seen.reasoning, seen.content) == ("why", "")
    app = app_that_says("why</think>Hi", template=OPEN, parser=THINKING)
    seen = await answer(app, {"stop": stop}, stream=stream)
    assert (seen.reasoning, seen.content) == ("why", "Hi")


@both
async def test_a_stop_string_in_a_call_leaves_it_incomplete(stream: bool) -> None:
    app = app_that_says(call("first", ARGUMENTS))
    seen = await answer(app, {"tools": TOOLS, "stop": '"c"'}, stream=stream)
    assert seen.finish_reason == "stop"
    (made,) = seen.calls
    assert made["function"]["arguments"] == ARGUMENTS[: ARGUMENTS.index('"c"')]


@pytest.mark.parametrize("fields", [("reasoning_content",), ("reasoning",)])
@both
async def test_the_name_of_reasoning(stream: bool, fields: tuple[str, ...]) -> None:
    app = app_that_says("a</think>b", template=OPEN, reasoning_fields=fields)
    asked = exchange(app, {"max_tokens": 100}, stream=stream)
    async with app.lifespan():
        await asked.run()
    part = asked.chunks[0]["choices"][0]["delta"] if stream else asked.json["choices"][0]["message"]
    assert {name for name in part if name.startswith("reasoning")} == set(fields)


@both
async def test_reasoning_that_is_left_out_is_counted(stream: bool) -> None:
    app = app_that_says("abc</think>b", template=OPEN)
    seen = await answer(app, {"include_reasoning": False}, stream=stream)
    assert (seen.reasoning, seen.content) == ("", "b")
    assert seen.usage["completion_tokens_details"] == {"reasoning_tokens": 11}


@both
async def test_one_call_where_calls_are_not_parallel(stream: bool) -> None:
    app = app_that_says(call("first") + call("second"))
    fields = {"tools": TOOLS, "parallel_tool_calls": False}
    seen = await answer(app, fields, stream=stream)
    assert [call["function"]["name"] for call in seen.calls] == ["first"]
    assert seen.finish_reason == "tool_calls"
    assert seen.usage["completion_tokens"] == len(call("first")) + len("<tool_call>")
    assert app.decode_engine.busy == {}


@both
async def test_without_tools_or_with_none_calls_are_text(stream: bool) -> None:
    for fields in ({}, {"tools": TOOLS, "tool_choice": "none"}):
        seen = await answer(app_that_says(call("first")), fields, stream=stream)
        assert (seen.content, seen.calls) == (call("first"), [])
        assert seen.finish_reason == "stop"


async def test_tools_without_a_parser_are_refused_before_prefill() -> None:
    chunks: list[int] = []
    app = ByteApp(Script(before_chunk=chunks.append), parser=THINKING)
    asked = exchange(app, {"tools": TOOLS})
    async with app.lifespan():
        await asked.run()
    error = asked.json["error"]
    assert (asked.status, error["param"]) == (400, "tools")
    assert "output parser" in error["message"]
    assert chunks == []


async def test_completions_are_text_only() -> None:
    app = app_that_says("<think>a</think>b")
    asked = exchange(app, {"prompt": "x", "max_tokens": 100})
    async with app.lifespan():
        await asked.run()
    assert asked.json["choices"][0]["text"] == "<think>a</think>b"


async def test_a_marker_that_is_a_special_token_is_seen() -> None:
    """The tokenizer hides the end token's text; a parser whose marker it is gets to see it."""

    class Special:
        name = "special"
        tools = False
        markers = ("<|eos|>",)
        writes = THINKING.writes
        open = THINKING.open

    script = Script(token=says(b"a", EOS, b"b"))
    hidden = ByteApp(script, template=CLOSED, parser=THINKING)
    shown = ByteApp(script, template=CLOSED, parser=Special())
    fields = {"ignore_eos": True, "max_tokens": 3}
    assert (await answer(hidden, fields, stream=False)).content == "ab"
    assert (await answer(shown, fields, stream=False)).content == "a<|eos|>b"


async def test_thinking_is_switched_by_the_template_s_variables() -> None:
    template = (
        "{% for m in messages %}{{ m.content }}{% endfor %}"
        "{{ '<think>' if enable_thinking is not defined or enable_thinking else '</think>' }}"
    )
    for fields, reasoning in (
        ({}, "ab"),
        ({"chat_template_kwargs": {"enable_thinking": True}}, "ab"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, ""),
        ({"reasoning_effort": "none"}, ""),
        ({"reasoning_effort": "high"}, "ab"),
    ):
        seen = await answer(app_that_says("ab", template=template), fields, stream=True)
        assert seen.reasoning == reasoning
        assert seen.content == ("" if reasoning else "ab")


@both
async def test_glm_writes_arguments_one_by_one(stream: bool) -> None:
    text = (
        "why</think><tool_call>first<arg_key>a</arg_key><arg_value>é\n</arg_value>"
        "<arg_key>b</arg_key><arg_value>[1]</arg_value></tool_call>"
    )
    app = app_that_says(text, template=OPEN, parser=GLM47)
    seen = await answer(app, {"tools": TOOLS}, stream=stream)
    (made,) = seen.calls
    assert orjson.loads(made["function"]["arguments"]) == {"a": "é\n", "b": [1]}
    assert (seen.reasoning, seen.finish_reason) == ("why", "tool_calls")
