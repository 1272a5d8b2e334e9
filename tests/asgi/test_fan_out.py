"""Several answers to one request: who fails, who leaves, and who finds no slot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, cast

import orjson
import pytest

from tests.cases.asking import BYTE, ByteApp, Exchange, at, batches, exchange, says
from tilert_engine.scripted import Script
from tilert_stream.asgi.fan_out import open_all, requests_of
from tilert_stream.errors import EngineFault
from tilert_stream.events import Finished
from tilert_stream.openai.completions import parse_completion
from tilert_stream.openai.token_names import TokenNames
from tilert_stream.stages.gathered import Gathered
from tilert_stream.stages.sse import EncodeSSE
from tilert_stream.testing import Gate

both = pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])
TWO: dict[str, Any] = {"n": 2, "max_tokens": 3}


class Forwarding(Protocol):
    async def forward(self, sink: Callable[[list[bytes]], bool]) -> list[bytes]: ...


def indices(asked: Exchange) -> set[int]:
    return {choice["index"] for chunk in asked.chunks for choice in chunk.get("choices", ())}


@both
@pytest.mark.parametrize("slots", [1, 2, 3])
async def test_all_answers_come_whatever_the_slots(slots: int, stream: bool) -> None:
    app = ByteApp(Script(), slots=slots)
    asked = exchange(app, TWO | {"n": 3}, stream=stream)
    async with app.lifespan():
        await asked.run()
        assert app.service.ledger.counts == {}
    assert (asked.status, asked.complete) == (200, True)
    if stream:
        assert asked.content.endswith(b"data: [DONE]\n\n")
        assert asked.content.count(b"[DONE]") == 1
        *_, usage = asked.chunks
        assert usage["choices"] == []
        assert indices(asked) == {0, 1, 2}
        usage = usage["usage"]
    else:
        choices, usage = asked.json["choices"], asked.json["usage"]
        assert [choice["index"] for choice in choices] == [0, 1, 2]
        assert {choice["message"]["content"] for choice in choices} == {"abc"}
    assert usage == {"prompt_tokens": 3, "completion_tokens": 9, "total_tokens": 12}
    assert app.decode_engine.busy == {}


async def test_usage_on_every_chunk_counts_all_answers_so_far() -> None:
    app = ByteApp(Script())
    options = {"include_usage": True, "continuous_usage_stats": True}
    asked = exchange(app, TWO | {"stream_options": options}, stream=True)
    async with app.lifespan():
        await asked.run()
    counts = [chunk["usage"]["completion_tokens"] for chunk in asked.chunks]
    assert counts == sorted(counts)
    assert counts[-1] == 6


def fail(_number: int) -> None:
    raise EngineFault("by script")


@both
async def test_one_that_fails_before_anything_is_an_http_status(stream: bool) -> None:
    app = ByteApp(Script(before_chunk=fail), slots=2)
    asked = exchange(app, TWO, stream=stream)
    async with app.lifespan():
        await asked.run()
        assert app.service.ledger.counts == {}
    assert (asked.status, asked.json["error"]["code"]) == (500, "engine_fault")


@both
async def test_one_that_fails_later_fails_them_all(stream: bool) -> None:
    app = ByteApp(Script(before_chain=at(1, fail), chain=batches(1, 1, 1)), slots=2)
    asked = exchange(app, TWO | {"max_tokens": 9}, stream=stream)
    async with app.lifespan():
        await asked.run()
        assert app.service.ledger.counts == {}
    assert app.decode_engine.busy == {}
    if stream:
        assert (asked.status, asked.complete) == (200, False), "the stream is cut"
        assert asked.chunks[-1]["error"]["code"] == "engine_fault"
        assert b"[DONE]" not in asked.content
    else:
        assert (asked.status, asked.json["error"]["code"]) == (500, "engine_fault")


async def test_done_after_an_error_where_the_operator_wants_it() -> None:
    script = Script(before_chain=at(1, fail))
    app = ByteApp(script, slots=2, done_after_error=True)
    asked = exchange(app, TWO | {"max_tokens": 9}, stream=True)
    async with app.lifespan():
        await asked.run()
    assert asked.complete
    assert asked.content.endswith(b"data: [DONE]\n\n")


@both
async def test_where_one_finds_no_slot_none_is_served(stream: bool) -> None:
    app = ByteApp(Script(), slots=1, queue_timeout=0)
    asked = exchange(app, TWO, stream=stream)
    async with app.lifespan():
        await asked.run()
        assert app.service.ledger.counts == {}
    assert (asked.status, asked.json["error"]["code"]) == (429, "slots_busy")


async def test_a_client_that_leaves_ends_them_all() -> None:
    gate = Gate()
    app = ByteApp(Script(token=says(b"abcdef"), before_chain=at(1, gate.pass_through)), slots=2)
    asked = exchange(app, TWO | {"max_tokens": 9}, stream=True)
    async with app.lifespan():
        async with asked.running(gate):
            while not asked.sent:
                await asked.grown()
            asked.leave()
            gate.open()
        assert app.service.ledger.counts == {}
    assert app.decode_engine.busy == {}


async def test_its_items_can_be_forwarded_to_a_plain_call() -> None:
    app = ByteApp(Script(chain=batches(2, 1)), slots=2)
    request, envelope = parse_completion(
        orjson.dumps({"prompt": "abc", "n": 2, "max_tokens": 6, "stream": True}), app.card
    )
    seen: list[bytes] = []

    def once(items: list[bytes]) -> bool:
        seen.extend(items)
        return False

    def always(items: list[bytes]) -> bool:
        seen.extend(items)
        return True

    async with app.lifespan():
        gathered = Gathered()
        opened = [
            app.service.open(each, EncodeSSE(named, names=TokenNames(BYTE), gathered=gathered))
            for each, named in requests_of(request, envelope)
        ]
        async with open_all(opened, envelope, gathered, done_after_error=False) as stream:
            whole = cast("Forwarding", stream)
            assert await whole.forward(once) == []
            assert len(seen) >= 1
            assert stream.outcome is None
            last = await whole.forward(always)
            assert await whole.forward(always) == [], "the end was there"
    content = b"".join((*seen, *last))
    assert content.endswith(b"data: [DONE]\n\n")
    events = content.decode().split("\n\n")[:-2]
    texts = {0: "", 1: ""}
    for event in events:
        (choice,) = orjson.loads(event[6:])["choices"]
        texts[choice["index"]] += choice["text"]
    assert texts == {0: "abcabc", 1: "abcabc"}
    assert stream.outcome == Finished("length")
