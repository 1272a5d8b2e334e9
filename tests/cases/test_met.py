"""Usage and timing, through the whole app, streamed and plain."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from tests.cases.asking import BYTE, ByteApp, Said, ask, batches, exchange, says
from tilert_engine.scripted import Script, ScriptedDecode, ScriptedPrefill
from tilert_stream.abc import PrefillResult
from tilert_stream.events import PromptUsage, TokenBatch
from tilert_stream.testing import Gate

both = pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])


async def test_met_01_the_role_leaves_with_the_first_text() -> None:
    """Not with the first step of prefill, and not with a token that has no text yet."""
    with Gate() as prefill, Gate() as decode:
        script = Script(
            token=says("é!".encode()),
            chunks=2,
            before_chunk=lambda chunk: prefill.pass_through(chunk) if chunk else None,
            before_import=decode.pass_through,
        )
        app = ByteApp(script)
        asked = exchange(app, {"max_tokens": 3}, stream=True)
        async with app.lifespan(), asked.running(prefill, decode):
            for gate in (prefill, decode):
                await gate.arrival()
                await anyio.wait_all_tasks_blocked()
                assert asked.sent == []
                gate.open()
            await asked.until("é!")
    deltas = [chunk["choices"][0]["delta"] for chunk in asked.chunks[:-1]]
    assert deltas == [{"role": "assistant", "content": "é"}, {"content": "!"}, {}]


async def test_met_03_the_end_leaves_before_the_slot_is_cleared() -> None:
    with Gate() as gate:

        class SlowToClose(ScriptedDecode):
            def close(self, sequence: Any) -> None:
                gate.pass_through(0)
                super().close(sequence)

        decode = SlowToClose(Script(), slots=1)
        app = ByteApp(decode=decode)
        asked = exchange(app, {"max_tokens": 4}, stream=True)
        async with app.lifespan():
            await asked.run()
            assert decode.busy, "the slot is not free yet"
            gate.open()
    assert asked.complete
    last = asked.sent[-1]["body"]
    assert b'"finish_reason":"length"' in last
    assert b'"usage":{' in last
    assert last.endswith(b"data: [DONE]\n\n"), "finish, usage and [DONE] are one message"


async def test_met_04_tokens_are_counted_not_chunks() -> None:
    app = ByteApp(Script(chain=batches(4, 4, 3)))
    options = {"include_usage": True, "continuous_usage_stats": True}
    asked = exchange(app, {"max_tokens": 12, "stream_options": options}, stream=True)
    async with app.lifespan():
        await asked.run()
    counts = [chunk["usage"]["completion_tokens"] for chunk in asked.chunks]
    assert counts == [1, 5, 9, 12, 12, 12], "four with text, finish, usage"
    assert len(asked.pieces) == 4


@pytest.mark.parametrize(
    ("text", "pieces", "counts"),
    [
        pytest.param("abcde", ["a", "bcde"], [1, 5], id="nothing-forces-a-hold"),
        pytest.param("éabc", ["éabc"], [5], id="half-a-character"),
    ],
)
async def test_met_05_the_first_text_says_how_many_tokens_it_covers(
    text: str, pieces: list[str], counts: list[int]
) -> None:
    app = ByteApp(Script(token=says(text.encode()), chain=batches(4)))
    options = {"include_usage": True, "continuous_usage_stats": True}
    asked = exchange(app, {"max_tokens": 5, "stream_options": options}, stream=True)
    async with app.lifespan():
        await asked.run()
    assert asked.pieces == pieces
    seen = [chunk["usage"]["completion_tokens"] for chunk in asked.chunks]
    assert seen == [*counts, 5, 5]


async def test_met_05_a_stop_string_holds_the_first_token() -> None:
    app = ByteApp(Script(token=says(b"Sabcd"), chain=batches(4)))
    options = {"include_usage": True, "continuous_usage_stats": True}
    fields = {"max_tokens": 5, "stop": "ST", "stream_options": options}
    asked = exchange(app, fields, stream=True)
    async with app.lifespan():
        await asked.run()
    assert asked.pieces == ["Sabcd"]
    assert asked.chunks[0]["usage"]["completion_tokens"] == 5


async def test_met_06_usage_is_one_chunk_and_only_where_asked_for() -> None:
    app = ByteApp()
    async with app.lifespan():
        for options in ({"include_usage": True}, {"include_usage": False}, {}, None):
            fields = {"max_tokens": 5, "stream_options": options}
            asked = exchange(app, fields, stream=True)
            await asked.run()
            without = [chunk for chunk in asked.chunks if chunk["choices"]]
            assert len(without) == 6
            assert all(chunk.get("usage") is None for chunk in without)
            if options and options["include_usage"]:
                assert asked.chunks[-2]["choices"][0]["finish_reason"] == "length"
                assert asked.chunks[-1]["choices"] == []
                assert asked.chunks[-1]["usage"] == {
                    "prompt_tokens": 3,
                    "completion_tokens": 5,
                    "total_tokens": 8,
                }
                assert len(asked.chunks) == 7
            else:
                assert asked.chunks == without


async def test_met_08_content_chunks_have_no_usage() -> None:
    app = ByteApp()
    asked = exchange(app, {"max_tokens": 5}, stream=True)
    async with app.lifespan():
        await asked.run()
    assert len(asked.pieces) == 5
    assert [chunk.get("usage") is not None for chunk in asked.chunks] == [False] * 6 + [True]


class Cached(ScriptedPrefill):
    """Prefill that says how much of the prompt it had already."""

    cached: int | None = None

    def advance(self, run: Any) -> Any:
        result = super().advance(run)
        return result and _Result(result, self.cached)


class _Result:
    def __init__(self, result: PrefillResult, cached: int | None) -> None:
        self.first: TokenBatch = result.first
        self.kv: object = result.kv
        self.usage = PromptUsage(result.usage.prompt_tokens, cached)


@both
@pytest.mark.parametrize("cached", [None, 0, 6144])
async def test_met_11_cached_tokens_are_prefills(cached: int | None, stream: bool) -> None:
    script = Script()
    prefill = Cached(script, max_seq_len=9000)
    prefill.cached = cached
    app = ByteApp(script, prefill=prefill, max_seq_len=9000)
    asked = exchange(app, {"prompt": [65] * 8193, "max_tokens": 2}, stream=stream)
    async with app.lifespan():
        await asked.run()
    usage = asked.chunks[-1]["usage"] if stream else asked.json["usage"]
    counts = {"prompt_tokens": 8193, "completion_tokens": 2, "total_tokens": 8195}
    details = {} if cached is None else {"prompt_tokens_details": {"cached_tokens": cached}}
    assert usage == counts | details


@both
async def test_met_09_three_integers_in_both_paths(stream: bool) -> None:
    """Prefill that reports no usage of its own leaves the count that was made here."""
    app = ByteApp()
    asked = exchange(app, {"max_tokens": 2}, stream=stream)
    async with app.lifespan():
        await asked.run()
    usage = asked.chunks[-1]["usage"] if stream else asked.json["usage"]
    assert usage == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    if not stream:
        assert asked.json["choices"][0]["logprobs"] is None


@both
@pytest.mark.parametrize("n", [1, 2, 3, 16])
async def test_met_12_the_first_token_counts_once(n: int, stream: bool) -> None:
    app = ByteApp(Script(token=says(b"H" + b"i" * 99), chain=batches(4, 4, 4, 4)))
    async with app.lifespan():
        said = await ask(app, {"max_tokens": n}, stream=stream)
    assert said == Said("H" + "i" * (n - 1), "length", n)


@both
async def test_met_13_four_tokens_of_one_character(stream: bool) -> None:
    app = ByteApp(Script(token=says("😀".encode())))
    async with app.lifespan():
        assert await ask(app, {"max_tokens": 4}, stream=stream) == Said("😀", "length", 4)
    assert BYTE.decode("😀".encode(), skip_special_tokens=True) == "😀"


async def test_met_15_one_envelope_on_every_chunk() -> None:
    app = ByteApp()
    async with app.lifespan():
        envelopes: list[set[tuple[object, ...]]] = []
        for _ in range(2):
            asked = exchange(app, {"max_tokens": 30}, stream=True)
            await asked.run()
            assert len(asked.chunks) == 32
            envelopes.append(
                {(c["id"], c["created"], c["model"], c["object"]) for c in asked.chunks}
            )
    (first,), (second,) = envelopes
    assert first[0] != second[0], "each request has its own id"
    assert first[2:] == ("byte", "chat.completion.chunk")
