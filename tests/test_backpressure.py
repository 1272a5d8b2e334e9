"""A slow reader: what piles up is bounded, and everything still comes, in order."""

from __future__ import annotations

from collections.abc import Iterable

import anyio
import pytest

from tilert_stream.abc import Receive, Send
from tilert_stream.channels import CAPACITY
from tilert_stream.events import Finished, GenerateRequest, TokenBatch
from tilert_stream.lease import Ledger
from tilert_stream.pipeline import Pipeline
from tilert_stream.scope import RequestScope
from tilert_stream.testing import make_request

REQUEST = make_request()
COUNT = 500


class Emit:
    """Puts everything at once, as an engine does that never waits."""

    async def produce(self, item: GenerateRequest, scope: RequestScope) -> TokenBatch | None:
        for number in range(COUNT):
            assert scope.mailbox.put(TokenBatch((number,)))
        assert scope.mailbox.put(Finished("length"))
        return None


class Number:
    def __init__(self, _scope: RequestScope) -> None: ...

    def feed(self, item: TokenBatch) -> Iterable[int]:
        return item.ids

    def finish(self, _outcome: Finished) -> Iterable[int]:
        return ()


class Count:
    """Passes on, and counts what it has read and what it has been rid of."""

    def __init__(self) -> None:
        self.received = 0
        self.sent = 0

    async def run(self, receive: Receive[int], send: Send[int]) -> None:
        async for item in receive:
            self.received += 1
            await send(item)
            self.sent += 1


class Burst:
    """Many items for one."""

    async def run(self, receive: Receive[int], send: Send[int]) -> None:
        async for item in receive:
            for _ in range(100):
                await send(item)


async def test_a_full_channel_suspends_who_is_on_its_left() -> None:
    stages = Count(), Count()
    pipeline = Pipeline().then(Emit()).then(Number)
    pipeline = pipeline.then(stages[0], name="first").then(stages[1], name="second")
    async with pipeline.open(REQUEST) as stream:
        await anyio.wait_all_tasks_blocked()
        first, second = stages
        assert (second.sent, second.received) == (CAPACITY, CAPACITY + 1)
        assert (first.sent, first.received) == (2 * CAPACITY + 1, 2 * CAPACITY + 2)
        assert stream.scope.mailbox.statistics().items == COUNT + 1, "the engine never waited"

        some = await anext(stream)
        assert some == list(range(len(some)))
        await anyio.wait_all_tasks_blocked()
        assert second.received == CAPACITY + 1 + len(some), "one step for each that was taken"

        rest = [item async for items in stream for item in items]
        assert some + rest == list(range(COUNT))
        assert stream.outcome == Finished("length")


async def test_one_read_takes_what_lies_there_and_no_more_than_the_channel_holds() -> None:
    pipeline = Pipeline().then(Emit()).then(Number).then(Burst())
    async with pipeline.open(REQUEST) as stream:
        for _ in range(3):
            await anyio.wait_all_tasks_blocked()
            items = await anext(stream)
            assert CAPACITY <= len(items) <= CAPACITY + 1
        assert stream.outcome is None


async def test_without_a_stage_that_awaits_one_read_takes_all() -> None:
    async with Pipeline().then(Emit()).then(Number).open(REQUEST) as stream:
        await anyio.wait_all_tasks_blocked()
        assert await anext(stream) == list(range(COUNT))
        assert stream.outcome == Finished("length"), "known together with the last items"
        with pytest.raises(StopAsyncIteration):
            await anext(stream)


@pytest.mark.parametrize("taken", [0, 1, 3])
async def test_leaving_while_all_are_suspended(
    taken: int, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = Ledger()
    pipeline = Pipeline().then(Emit()).then(Number).then(Count()).then(Burst())
    async with pipeline.open(REQUEST, ledger=ledger) as stream:
        for _ in range(taken):
            await anext(stream)
        await anyio.wait_all_tasks_blocked()
    assert ledger.counts == {}
    assert caplog.records == []
