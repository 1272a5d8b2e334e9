"""Reasoning, calls, characters, several answers and log-probabilities, through router and nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
import pytest

from tests.cases.asking import EOS, Said, ask, batches, exchange, says
from tests.cases.sides import THINK_END, answering, routing_to
from tests.cases.test_tr import (
    ARGUMENTS,
    CLOSED,
    OPEN,
    TOOLS,
    Answer,
    call,
    joined,
    whole,
    without_ids,
)
from tests.nodes.routing import letters
from tilert_engine.scripted import Script
from tilert_stream.testing import pd_nodes
from tilert_stream.testing.pd_nodes import ScriptedDecodeNode, ScriptedPrefillNode

if TYPE_CHECKING:
    from tilert_stream.asgi import App

both = pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])


async def answer(app: App, fields: dict[str, Any], *, stream: bool) -> Answer:
    asked = exchange(app, {"max_tokens": 1000} | fields, stream=stream)
    await asked.run()
    assert (asked.status, asked.complete) == (200, True), asked.content
    return joined(asked) if stream else whole(asked)


@both
@pytest.mark.parametrize(
    ("parts", "reasoning", "content"),
    [
        ((b"a</think>b",), "a", "b"),
        ((b"a", THINK_END, b"b"), "a", "b"),
        ((THINK_END, b"Hi"), "", "Hi"),
        ((b"a</thin g",), "a</thin g", ""),
        ((b"a</think>Hi</thi",), "a", "Hi</thi"),
    ],
)
async def test_tr_01_the_end_of_reasoning_never_leaks(
    parts: tuple[bytes | int, ...],
    reasoning: str,
    content: str,
    stream: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for chain in (1, 3, 400):
        script = Script(token=says(*parts), chain=batches(*[chain] * 20))
        async with answering("split", script, monkeypatch, parser="think", template=OPEN) as app:
            seen = await answer(app, {}, stream=stream)
            assert (seen.reasoning, seen.content, seen.finish_reason) == (
                reasoning,
                content,
                "stop",
            )


@both
async def test_tr_03_tr_04_tr_05_calls(stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    text = call("first", ARGUMENTS) + call("second")
    for chain in (1, 5, 400):
        script = Script(token=says(text.encode()), chain=batches(*[chain] * 200))
        async with answering("split", script, monkeypatch, parser="hermes", template=CLOSED) as app:
            seen = await answer(app, {"tools": TOOLS}, stream=stream)
            assert without_ids(seen.calls) == [
                {"type": "function", "function": {"name": "first", "arguments": ARGUMENTS}},
                {"type": "function", "function": {"name": "second", "arguments": "{}"}},
            ]
            assert len({made["id"] for made in seen.calls}) == 2
            assert orjson.loads(seen.calls[0]["function"]["arguments"])["a"]["c"][1] == {"d": "😀é"}
            assert (seen.content, seen.finish_reason) == ("", "tool_calls")
            cut = await answer(app, {"tools": TOOLS, "max_tokens": 60}, stream=stream)
            assert cut.finish_reason == "length"


@both
async def test_utf_01_utf_02_utf_09_utf_10_characters(
    stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for parts, said in (
        (("👨‍👩‍👧‍👦 한世🌶️".encode(), EOS), Said("👨‍👩‍👧‍👦 한世🌶️", "stop", 40)),
        ((b"A\xf0\x9f", EOS), Said("A\ufffd", "stop", 4)),
        ((257, 257, EOS), Said(" the the", "stop", 3)),
        ((EOS, b"x"), Said("", "stop", 1)),
        ((b"hi", EOS, b"x"), Said("hi", "stop", 3)),
        ((b"a", 256, b"b", EOS), Said("a\ufffdb", "stop", 4)),
    ):
        for sizes in ((), (2, 40)):
            script = Script(token=says(*parts), chain=batches(*sizes))
            async with answering("split", script, monkeypatch) as app:
                assert await ask(app, {"max_tokens": 99}, stream=stream) == said


@both
async def test_pd_15_several_prompts_and_answers(
    stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More answers than slots: they wait in line, and none hangs."""
    fields = {"prompt": [[97, 98, 99], [120, 121]], "n": 2, "best_of": 2, "max_tokens": 4}
    async with answering("split", Script(), monkeypatch) as app:
        asked = exchange(app, fields, stream=stream)
        await asked.run()
    bodies: list[Any] = asked.chunks if stream else [asked.json]
    texts = dict.fromkeys(range(4), "")
    for body in bodies:
        for choice in body["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts == {0: "abca", 1: "abca", 2: "xyxy", 3: "xyxy"}
    usage = {"prompt_tokens": 5, "completion_tokens": 16, "total_tokens": 21}
    assert bodies[-1]["usage"] == usage


@both
@pytest.mark.parametrize(
    ("stop", "text", "logprobs"),
    [
        (None, "abcd", [-0.5, -1.0, -2.0, -3.0]),
        ("bc", "a", [-0.5, -1.0, -2.0]),
    ],
)
async def test_pd_16_the_first_entry_is_prefills_and_the_others_are_decodes(
    stop: str | None,
    text: str,
    logprobs: list[float],
    stream: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A stop string cuts the text of two tokens, and the entries stay as many as the tokens."""
    lines = [
        {"t": [97], "lp": [[-9.0, [[97, -9.0]]]]},
        {"t": [98, 99], "lp": [[-1.0, [[98, -1.0], [65, -1.5]]], [-2.0, [[99, -2.0], [66, -2.5]]]]},
        {"t": [100], "lp": [[-3.0, [[100, -3.0], [67, -3.5]]]]},
        {"done": True, "n": 4, "finish_reason": "length"},
    ]

    async def prefills(_fields: dict[str, Any]) -> pd_nodes.Answer:
        first = {
            "tokens": ["token_id:97"],
            "token_logprobs": [-0.5],
            "top_logprobs": [{"token_id:97": -0.5, "token_id:64": -0.75}],
        }
        choice = {"index": 0, "text": "a", "finish_reason": "length", "logprobs": first}
        return pd_nodes.Answer(200, orjson.dumps({"choices": [choice | {"token_ids": [97]}]}))

    async def decodes(_fields: dict[str, Any]) -> pd_nodes.Answer:
        return pd_nodes.Answer(200, b"".join(orjson.dumps(line) + b"\n" for line in lines))

    decode = ScriptedDecodeNode(token=letters, hooks={"/pd/decode": decodes})
    async with routing_to(ScriptedPrefillNode(before_answer=prefills), decode, monkeypatch) as app:
        fields: dict[str, Any] = {"logprobs": True, "top_logprobs": 2, "max_tokens": 4}
        asked = exchange(app, fields | ({"stop": stop} if stop else {}), stream=stream)
        await asked.run()
    bodies: list[Any] = asked.chunks if stream else [asked.json]
    choices: list[Any] = [choice for body in bodies for choice in body["choices"]]
    told: list[Any] = [choice["logprobs"] for choice in choices if choice.get("logprobs")]
    entries: list[Any] = [entry for each in told for entry in each["content"]]
    assert [entry["logprob"] for entry in entries] == logprobs
    assert [len(entry["top_logprobs"]) for entry in entries] == [2] * len(entries)
    assert entries[0]["top_logprobs"][1]["logprob"] == -0.75
    assert bodies[-1]["usage"]["completion_tokens"] == len(entries)
    assert (asked.text if stream else choices[0]["message"]["content"]) == text


@both
@pytest.mark.parametrize("batches_of", [1, 4, 20])
@pytest.mark.parametrize("said", [b"a</think>bc", b"</think>bc", b"abc"], ids=bytes.decode)
async def test_pd_16_each_token_of_the_thinking_has_its_entry(
    said: bytes, batches_of: int, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first token too, which prefill makes, wherever the parser puts its text."""
    of = [-0.25 * (index + 1) for index in range(len(said))]
    ids = list(said)
    lines: list[Any] = [
        {"t": ids[i : i + batches_of], "lp": [[lp, [[1, lp]]] for lp in of[i : i + batches_of]]}
        for i in range(0, len(ids), batches_of)
    ]
    lines.append({"done": True, "n": len(ids), "finish_reason": "length"})

    async def prefills(_fields: dict[str, Any]) -> pd_nodes.Answer:
        name = f"token_id:{ids[0]}"
        first = {"tokens": [name], "token_logprobs": [-9.0], "top_logprobs": [{name: -9.0}]}
        choice = {"index": 0, "finish_reason": "length", "logprobs": first, "token_ids": ids[:1]}
        return pd_nodes.Answer(200, orjson.dumps({"choices": [choice]}))

    async def decodes(_fields: dict[str, Any]) -> pd_nodes.Answer:
        return pd_nodes.Answer(200, b"".join(orjson.dumps(line) + b"\n" for line in lines))

    prefill = ScriptedPrefillNode(before_answer=prefills)
    decode = ScriptedDecodeNode(hooks={"/pd/decode": decodes})
    routing = routing_to(prefill, decode, monkeypatch, template=OPEN, output_parser="think")
    async with routing as app:
        fields: dict[str, Any] = {"logprobs": True, "max_tokens": len(said)}
        asked = exchange(app, fields, stream=stream)
        await asked.run()
    bodies: list[Any] = asked.chunks if stream else [asked.json]
    told = [c["logprobs"] for body in bodies for c in body["choices"] if c.get("logprobs")]
    entries = [entry for each in told for entry in each["content"]]
    assert [entry["logprob"] for entry in entries] == [-9.0, *of[1:]]
    assert b"".join(bytes(entry["bytes"]) for entry in entries) == said
    assert bodies[-1]["usage"]["completion_tokens"] == len(entries)
