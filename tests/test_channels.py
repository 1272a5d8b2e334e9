"""Stages that await, and how they may end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import anyio
import pytest

from tilert_stream.abc import Receive, Send
from tilert_stream.errors import EngineFault, StageError
from tilert_stream.events import Finished, GenerateRequest, TokenBatch
from tilert_stream.lease import Ledger
from tilert_stream.pipeline import Pipeline
from tilert_stream.scope import RequestScope
from tilert_stream.testing import make_request

REQUEST = make_request()
LENGTH = Finished("length")


class Emit:
    def __init__(self, count: int = 100, end: Finished = LENGTH) -> None:
        self.count = count
        self.end = end

    async def produce(self, item: GenerateRequest, scope: RequestScope) -> TokenBatch | None:
        for number in range(self.count):
            scope.mailbox.put(TokenBatch((number,)))
        scope.mailbox.put(self.end)
        return None


class Number:
    def __init__(self, _scope: RequestScope) -> None: ...

    def feed(self, item: TokenBatch) -> Iterable[int]:
        return item.ids

    def finish(self, _outcome: Finished) -> Iterable[int]:
        return ()


class Tail:
    """On the right of a stage: says how it ended."""

    def __init__(self, _scope: RequestScope) -> None: ...

    def feed(self, item: int) -> Iterable[int | str]:
        yield item

    def finish(self, outcome: Finished) -> Iterable[int | str]:
        yield outcome.reason


async def answer(stage: Any, source: Emit | None = None) -> tuple[list[Any], Finished]:
    unchecked: Any = Pipeline().then(source or Emit()).then(Number)
    pipeline: Pipeline[Any] = unchecked.then(stage).then(Tail)
    ledger = Ledger()
    items: list[Any] = []
    with anyio.fail_after(60):
        async with pipeline.open(REQUEST, ledger=ledger) as stream:
            async for some in stream:
                assert not any(isinstance(item, Finished) for item in some)
                items += some
    assert stream.outcome is not None
    assert ledger.counts == {}
    return items, stream.outcome


class Pass:
    outcome: Finished | None = LENGTH

    async def run(self, receive: Receive[int], send: Send[int]) -> None:
        assert receive.outcome is None
        async for item in receive:
            await send(item)
        self.outcome = receive.outcome
        async for _ in receive:
            pytest.fail("an input that has ended has no more items")


@pytest.mark.parametrize("end", [LENGTH, Finished.failed(EngineFault("a fault"))])
async def test_the_end_passes_through(end: Finished) -> None:
    stage = Pass()
    assert await answer(stage, Emit(100, end)) == ([*range(100), end.reason], end)
    assert stage.outcome is end


async def test_an_empty_stream() -> None:
    assert await answer(Pass(), Emit(0)) == (["length"], LENGTH)


async def test_what_is_sent_after_the_input_has_ended_still_comes() -> None:
    class Sum:
        async def run(self, receive: Receive[int], send: Send[int]) -> None:
            total = 0
            async for item in receive:
                total += item
            await send(total)

    assert await answer(Sum()) == ([4950, "length"], LENGTH)


async def test_a_stage_that_returns_early_is_at_fault() -> None:
    class Early:
        async def run(self, receive: Receive[int], send: Send[int]) -> None:
            async for item in receive:
                await send(item)
                if item == 3:
                    return

    items, outcome = await answer(Early())
    assert items == [0, 1, 2, 3, "error"]
    assert isinstance(outcome.error, StageError)
    assert str(outcome.error) == "stage 'early' returned before its input had ended"


async def test_a_stage_may_end_the_stream() -> None:
    class Until:
        async def run(self, receive: Receive[int], send: Send[int | Finished]) -> None:
            async for item in receive:
                await send(item)
                if item == 3:
                    await send(Finished("content_filter"))
                    await send(4)
                    await send(Finished("stop"))
                    return

    outcome = Finished("content_filter")
    assert await answer(Until()) == ([0, 1, 2, 3, "content_filter"], outcome)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("secret"),
        EngineFault("a fault"),
        anyio.BrokenResourceError(),
        anyio.ClosedResourceError(),
        anyio.EndOfStream(),
        StopAsyncIteration(),
    ],
)
async def test_a_stage_that_raises_ends_its_request(error: Exception) -> None:
    """Also with an error that looks like one of our own channel's."""

    class Raise:
        async def run(self, receive: Receive[int], send: Send[int]) -> None:
            async for item in receive:
                await send(item)
                if item == 3:
                    raise error

    items, outcome = await answer(Raise())
    assert items == [0, 1, 2, 3, "error"]
    assert outcome.error is not None
    assert error in (outcome.error, outcome.error.__cause__)


async def test_a_transform_on_the_right_that_ends_the_stream() -> None:
    class UntilThree:
        def __init__(self, _scope: RequestScope) -> None: ...

        def feed(self, item: int) -> Iterable[int | Finished]:
            yield item
            if item == 3:
                yield Finished("stop")

        def finish(self, _outcome: Finished) -> Iterable[int]:
            pytest.fail("it has said its last word")

    pipeline = Pipeline().then(Emit(10_000)).then(Number).then(Pass()).then(UntilThree)
    async with pipeline.open(REQUEST) as stream:
        items = [item async for some in stream for item in some]
    assert items == [0, 1, 2, 3]
    assert stream.outcome == Finished("stop")


async def test_a_stage_that_takes_its_time() -> None:
    class Slow:
        async def run(self, receive: Receive[int], send: Send[int]) -> None:
            async for item in receive:
                for _ in range(item % 3):
                    await anyio.lowlevel.checkpoint()
                await send(item)

    assert await answer(Slow()) == ([*range(100), "length"], LENGTH)
