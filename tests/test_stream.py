from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from tests.small_stages import BASE, REQUEST, Emit, Spell, answer
from tilert_stream.abc import Receive, Send
from tilert_stream.errors import (
    Busy,
    EngineFault,
    PipelineError,
    StageError,
)
from tilert_stream.events import Finished, GenerateRequest, TokenBatch
from tilert_stream.lease import Ledger
from tilert_stream.pipeline import Pipeline
from tilert_stream.scope import RequestScope
from tilert_stream.trace import TraceEvent

# --- failing -----------------------------------------------------------------------------------


class Failing:
    """Raises ``error`` in ``where``."""

    def __init__(self, where: str, error: Exception) -> None:
        self.where, self.error = where, error

    def fail(self, here: str) -> None:
        if here == self.where:
            raise self.error

    def feed(self, item: str) -> Iterable[str]:
        yield item
        if item == "3":
            self.fail("feed")

    def finish(self, _outcome: Finished) -> Iterable[str]:
        yield "held back"
        self.fail("finish")


class FailingStage:
    def __init__(self, error: Exception) -> None:
        self.error = error

    async def run(self, receive: Receive[str], send: Send[str]) -> None:
        async for item in receive:
            await send(item)
            if item == "3":
                raise self.error


class Tail:
    """What an encoder does: it says how the answer ended."""

    def feed(self, item: str) -> Iterable[str]:
        yield item

    def finish(self, outcome: Finished) -> Iterable[str]:
        yield f"end: {outcome.reason}"


@pytest.mark.parametrize("error", [ValueError("secret"), EngineFault("a fault"), Busy("later")])
@pytest.mark.parametrize("where", ["feed", "finish", "stage"])
async def test_a_stage_that_raises(where: str, error: Exception) -> None:
    failing = FailingStage(error) if where == "stage" else Failing(where, error)
    pipeline: Any = BASE.then(Spell)
    pipeline = pipeline.then(failing, name="failing").then(Tail())
    items, outcome = await answer(pipeline)
    assert items[:4] == ["0", "1", "2", "3"]
    assert items[-1] == "end: error", "the encoder on its right still speaks"
    assert len(items) == (13 if where == "finish" else 5)
    assert outcome.reason == "error"
    if isinstance(error, ValueError):
        assert isinstance(outcome.error, StageError)
        assert str(outcome.error) == "stage 'failing' failed"
        assert outcome.error.__cause__ is error
    else:
        assert outcome.error is error, "typed errors pass through"


@pytest.mark.parametrize("error", [ValueError("secret"), EngineFault("a fault")])
async def test_a_step_or_source_that_raises(error: Exception) -> None:
    class Broken:
        async def call(self, item: GenerateRequest, scope: RequestScope) -> GenerateRequest:
            raise error

    class BrokenSource:
        async def produce(self, item: GenerateRequest, scope: RequestScope) -> TokenBatch | None:
            scope.mailbox.put(TokenBatch((1,)))
            raise error

    by_step, outcome = await answer(Pipeline().then(Broken()).then(Emit()).then(Spell))
    assert by_step == ["[0, error]"]
    by_source, again = await answer(Pipeline().then(BrokenSource()).then(Spell))
    assert by_source == ["1", "[1, error]"]
    for end in (outcome, again):
        assert end.error is error or (end.error is not None and end.error.__cause__ is error)


async def test_a_factory_that_raises() -> None:
    def fail(_scope: RequestScope) -> Spell:
        raise ValueError("secret")

    ledger = Ledger()
    pipeline = BASE.then(fail, name="failing")
    with pytest.raises(StageError, match="stage 'failing' failed") as caught:
        async with pipeline.open(REQUEST, ledger=ledger):
            pass
    assert isinstance(caught.value.__cause__, ValueError)
    assert ledger.counts == {}


async def test_a_factory_that_makes_no_stage() -> None:
    ledger = Ledger()

    def three(_scope: RequestScope) -> object:
        return 3

    unchecked: Any = BASE
    pipeline: Pipeline[Any] = unchecked.then(three)
    with pytest.raises(PipelineError, match="stage 'three': its factory made 3"):
        async with pipeline.open(REQUEST, ledger=ledger):
            pass
    assert ledger.counts == {}


async def test_what_the_body_raises_comes_out_as_it_is() -> None:
    error = KeyError("mine")
    with pytest.raises(KeyError) as caught:
        async with BASE.open(REQUEST):
            raise error
    assert caught.value is error


async def test_a_stop_of_the_iteration_may_leave_the_body() -> None:
    async def read_for_ever() -> None:
        async with BASE.open(REQUEST) as stream:
            while True:
                await anext(stream)

    with pytest.raises(StopAsyncIteration):
        await read_for_ever()


# --- ending early ------------------------------------------------------------------------------


async def test_a_step_that_answers_by_itself() -> None:
    class Cached:
        async def call(
            self, item: GenerateRequest, scope: RequestScope
        ) -> GenerateRequest | Finished:
            scope.mailbox.put(TokenBatch((7,)))
            return Finished("stop")

    items, outcome = await answer(Pipeline().then(Cached()).then(Emit()).then(Spell))
    assert items == ["7", "[1, stop]"]
    assert outcome == Finished("stop")


async def test_a_transform_that_ends_the_stream_is_not_called_again() -> None:
    calls: list[str] = []

    class Until:
        def feed(self, item: str) -> Iterable[str | Finished]:
            calls.append(item)
            yield item
            if item == "3":
                yield Finished("stop", stop_reason="3")
                yield "never read"

        def finish(self, outcome: Finished) -> Iterable[str | Finished]:
            calls.append("finish")
            return ()

    items, outcome = await answer(BASE.then(Spell).then(Until()).then(Tail()))
    assert items == ["0", "1", "2", "3", "end: stop"]
    assert outcome == Finished("stop", stop_reason="3")
    assert calls == ["0", "1", "2", "3"]


async def test_a_finish_may_change_the_end() -> None:
    class Filtered:
        def feed(self, item: str) -> Iterable[str | Finished]:
            return ()

        def finish(self, outcome: Finished) -> Iterable[str | Finished]:
            yield "sorry"
            yield Finished("content_filter")

    items, outcome = await answer(BASE.then(Spell).then(Filtered()).then(Tail()))
    assert items == ["sorry", "end: content_filter"]
    assert outcome == Finished("content_filter")


# --- traces ------------------------------------------------------------------------------------


async def test_steps_are_traced() -> None:
    events: list[TraceEvent] = []
    async with BASE.open(REQUEST, trace=events.append) as stream:
        async for _ in stream:
            pass
    marks = [(event.name, event.phase) for event in events if event.name != "request"]
    assert marks == [
        ("check", "started"),
        ("check", "complete"),
        ("emit", "started"),
        ("emit", "complete"),
    ]
    assert {event.request_id for event in events} == {REQUEST.id}
