"""Usage and timing, through a router and its nodes, streamed and plain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import orjson
import pytest

from tests.cases.asking import EOS, Said, ask, batches, exchange, says
from tests.cases.sides import THINK_END, answering, routing_to
from tests.nodes.routing import letters
from tilert_engine.scripted import Script
from tilert_stream.testing import Gate
from tilert_stream.testing.pd_nodes import Answer, ScriptedDecodeNode, ScriptedPrefillNode

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

both = pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])
sides = pytest.mark.parametrize("side", ["one", "split"])
CONTINUOUS = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}


async def test_met_01_nothing_leaves_before_prefill_has_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    go, come = anyio.Event(), anyio.Event()

    async def wait(_fields: dict[str, Any]) -> None:
        come.set()
        await go.wait()

    prefill = ScriptedPrefillNode(before_answer=wait)
    async with routing_to(prefill, ScriptedDecodeNode(token=letters), monkeypatch) as app:
        asked = exchange(app, {"max_tokens": 3}, stream=True)
        async with asked.running():
            await come.wait()
            assert asked.sent == []
            go.set()
    deltas = [chunk["choices"][0]["delta"] for chunk in asked.chunks if chunk["choices"]]
    assert deltas[0].keys() == {"role", "content"}
    assert ["role" in delta for delta in deltas[1:]] == [False] * len(deltas[1:])
    assert asked.text == "abc"


async def test_met_03_the_end_does_not_wait_for_the_nodes_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The node keeps it open behind its last line, while it clears up."""
    cleared = anyio.Event()
    decode = ScriptedDecodeNode(token=letters, slots=2, before_end=cleared.wait)
    async with routing_to(ScriptedPrefillNode(), decode, monkeypatch) as app:
        for stream in (True, False):
            asked = exchange(app, {"max_tokens": 4}, stream=stream)
            await asked.run()
            assert (asked.status, asked.complete) == (200, True)
            assert not cleared.is_set()
            if stream:
                last = asked.sent[-1]["body"]
                assert b'"finish_reason":"length"' in last
                assert b'"usage":{' in last
                assert last.endswith(b"data: [DONE]\n\n")
        cleared.set()


async def test_met_04_met_13_counts_are_of_tokens_however_they_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two hops may put batches together: each chunk still says how many tokens it ends at."""
    script = Script(token=says(b"abcde", "😀".encode(), b"fgh"), chain=batches(4, 4, 3))
    async with answering("split", script, monkeypatch) as app:
        asked = exchange(app, {"max_tokens": 12} | CONTINUOUS, stream=True)
        await asked.run()
        plain = await ask(app, {"max_tokens": 12}, stream=False)
        cut = await ask(app, {"max_tokens": 9}, stream=True)
    assert plain == Said("abcde😀fgh", "length", 12)
    assert cut == Said("abcde😀", "length", 9)
    *texts, end, usage = asked.chunks
    text = ""
    for chunk in texts:
        text += chunk["choices"][0]["delta"]["content"]
        assert chunk["usage"]["completion_tokens"] == len(text.encode())
    assert text == plain.text
    assert texts[0]["usage"]["completion_tokens"] in (1, 5, 9, 12), "no batch is cut"
    assert end["usage"] == usage["usage"]
    assert usage["usage"] == {"prompt_tokens": 3, "completion_tokens": 12, "total_tokens": 15}


@sides
async def test_met_05_the_first_token_leaves_alone(
    side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While decode imports the KV cache; and it says that it covers one token."""
    with Gate() as gate:
        script = Script(chain=batches(4), before_import=gate.pass_through)
        async with answering(side, script, monkeypatch) as app:
            asked = exchange(app, {"max_tokens": 5} | CONTINUOUS, stream=True)
            async with asked.running(gate):
                await asked.until("a")
                assert asked.chunks[0]["usage"]["completion_tokens"] == 1
                gate.open()
    assert asked.pieces == ["a", "bcab"]
    assert [chunk["usage"]["completion_tokens"] for chunk in asked.chunks] == [1, 5, 5, 5]


@sides
async def test_met_05_a_parser_that_holds_the_first_token_says_so(
    side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ "<" may begin a marker: it leaves with what shows that it does not."""
    with Gate() as gate:
        script = Script(token=says(b"<abcd"), chain=batches(4), before_chain=gate.pass_through)
        async with answering(side, script, monkeypatch, parser="think") as app:
            asked = exchange(app, {"max_tokens": 5} | CONTINUOUS, stream=True)
            async with asked.running(gate):
                await gate.arrival()
                assert asked.sent == []
                gate.open()
    assert asked.pieces == ["<abcd"]
    assert asked.chunks[0]["usage"]["completion_tokens"] == 5


async def test_met_06_met_08_met_15_the_shape_of_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    async with answering("split", Script(), monkeypatch) as app:
        for options in ({"include_usage": True}, {"include_usage": False}, {}, None):
            asked = exchange(app, {"max_tokens": 5, "stream_options": options}, stream=True)
            await asked.run()
            assert asked.text == "abcab"
            said = {(c["id"], c["created"], c["model"], c["object"]) for c in asked.chunks}
            assert len(said) == 1
            with_choices = [chunk for chunk in asked.chunks if chunk["choices"]]
            assert all(chunk.get("usage") is None for chunk in with_choices)
            assert with_choices[-1]["choices"][0]["finish_reason"] == "length"
            if options and options["include_usage"]:
                (usage,) = asked.chunks[len(with_choices) :]
                assert usage["usage"] == {
                    "prompt_tokens": 3,
                    "completion_tokens": 5,
                    "total_tokens": 8,
                }
            else:
                assert asked.chunks == with_choices


def prefilled(usage: object, first: int = 72) -> Callable[[dict[str, Any]], Awaitable[Answer]]:
    """Prefill's answer with this ``usage``; ``...`` leaves it out."""

    async def answer(_fields: dict[str, Any]) -> Answer:
        choice = {"index": 0, "text": "", "finish_reason": "length", "token_ids": [first]}
        body: dict[str, Any] = {"id": "cmpl-1", "choices": [choice]}
        if usage is not ...:
            body["usage"] = usage
        return Answer(200, orjson.dumps(body))

    return answer


def usage_of(asked: Any, *, stream: bool) -> Any:
    return asked.chunks[-1]["usage"] if stream else asked.json["usage"]


@both
@pytest.mark.parametrize("usage", [..., None, {}, {"completion_tokens": 1}], ids=str)
async def test_met_09_prefill_that_says_nothing_of_the_prompt(
    usage: object, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The router has counted it itself."""
    prefill = ScriptedPrefillNode(before_answer=prefilled(usage))
    async with routing_to(prefill, ScriptedDecodeNode(token=letters), monkeypatch) as app:
        asked = exchange(app, {"max_tokens": 2}, stream=stream)
        await asked.run()
    assert usage_of(asked, stream=stream) == {
        "prompt_tokens": 3,
        "completion_tokens": 2,
        "total_tokens": 5,
    }
    if not stream:
        assert asked.json["choices"][0]["logprobs"] is None


@both
@pytest.mark.parametrize("cached", [None, 0, 6144])
async def test_met_11_what_decode_has_cached_is_nobodys_concern(
    cached: int | None, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: dict[str, Any] = {"prompt_tokens": 8193}
    if cached is not None:
        said["prompt_tokens_details"] = {"cached_tokens": cached}
    done: dict[str, Any] = {"done": True, "n": 2, "finish_reason": "length", "cached_tokens": 8192}
    done["usage"] = {"prompt_tokens_details": {"cached_tokens": 8192}}
    lines = b'{"t":[72]}\n{"t":[105]}\n' + orjson.dumps(done) + b"\n"

    async def decodes(_fields: dict[str, Any]) -> Answer:
        return Answer(200, lines)

    prefill = ScriptedPrefillNode(before_answer=prefilled(said))
    decode = ScriptedDecodeNode(hooks={"/pd/decode": decodes}, max_seq_len=9000)
    async with routing_to(prefill, decode, monkeypatch) as app:
        asked = exchange(app, {"prompt": [65] * 8193, "max_tokens": 2}, stream=stream)
        await asked.run()
    counts = {"prompt_tokens": 8193, "completion_tokens": 2, "total_tokens": 8195}
    details = {} if cached is None else {"prompt_tokens_details": {"cached_tokens": cached}}
    assert usage_of(asked, stream=stream) == counts | details


@both
@pytest.mark.parametrize("n", [1, 2, 3, 16])
async def test_met_12_the_first_token_is_prefills_and_counts_once(
    n: int, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefill = ScriptedPrefillNode(first_token=lambda _prompt: 72)
    decode = ScriptedDecodeNode(token=lambda _index: 105)
    async with routing_to(prefill, decode, monkeypatch) as app:
        said = await ask(app, {"max_tokens": n}, stream=stream)
        assert said == Said("H" + "i" * (n - 1), "length", n)
        assert ("/pd/decode" in decode.paths()) == (n > 1)
        assert prefill.calls[0]["max_tokens"] == 1


@both
@sides
async def test_met_12_the_end_of_thinking_as_the_first_token(
    side: str, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script(token=says(THINK_END, b"Hi", EOS))
    template = "{{ messages[0].content }}<think>"
    async with answering(side, script, monkeypatch, parser="think", template=template) as app:
        for limit, text, reason, count in ((9, "Hi", "stop", 4), (1, "", "length", 1)):
            asked = exchange(app, {"max_tokens": limit}, stream=stream)
            await asked.run()
            choices = [chunk["choices"][0] for chunk in asked.chunks[:-1]] if stream else []
            said = choices[-1] if stream else asked.json["choices"][0]
            assert said["finish_reason"] == reason
            assert (asked.text if stream else said["message"]["content"] or "") == text
            usage = usage_of(asked, stream=stream)
            assert usage["completion_tokens"] == count
            assert usage["completion_tokens_details"] == {"reasoning_tokens": 1}
            assert b"</think>" not in asked.content
