"""A request that is read by ``forward`` alone is produced in its reader's task."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import cast

import anyio
import pytest

from tests.small_stages import REQUEST
from tilert_stream.abc import Receive, Send
from tilert_stream.errors import EngineFault, NotReady
from tilert_stream.events import Finished, GenerateRequest, TokenBatch
from tilert_stream.opened import Opened
from tilert_stream.pipeline import Pipeline
from tilert_stream.scope import RequestScope
from tilert_stream.service import Service

END = Finished("length")


class Prefill:
    """Puts a token, and then waits: its KV cache is on its way."""

    def __init__(self) -> None:
        self.began = False
        self.arrived = anyio.Event()
        self.cancelled = False
        self.task: int | None = None

    async def call(self, item: GenerateRequest, scope: RequestScope) -> GenerateRequest:
        self.began = True
        self.task = anyio.get_current_task().id
        scope.mailbox.put(TokenBatch((1,)))
        try:
            await self.arrived.wait()
        except BaseException:
            self.cancelled = True
            raise
        return item


class Emit:
    """Two tokens and the end, at once."""

    async def produce(self, item: GenerateRequest, scope: RequestScope) -> TokenBatch | None:
        scope.mailbox.put(TokenBatch((2,)))
        scope.mailbox.put(TokenBatch((3,)), END)
        return None


class Name:
    """A token becomes its number; ``stop`` ends the answer."""

    stop = 0

    def __init__(self, _scope: RequestScope) -> None: ...

    def feed(self, item: TokenBatch) -> Iterable[str | Finished]:
        for token in item.ids:
            yield str(token)
            if token == self.stop:
                yield Finished("stop", "one")

    def finish(self, _outcome: Finished) -> Iterable[str | Finished]:
        return ()


class StopAtOne(Name):
    stop = 1


class Awaiting:
    async def run(self, receive: Receive[TokenBatch], send: Send[TokenBatch]) -> None:
        async for item in receive:
            await send(item)


class Reading:
    """One request whose stream is forwarded, and what comes of it.

    :param encode: its last stage.
    :param sink: says whether the stream may go on.
    """

    def __init__(
        self,
        encode: type[Name] = Name,
        *,
        awaits: bool = False,
        sink: Callable[[list[str]], bool] = lambda _: True,
    ) -> None:
        self.prefill = Prefill()
        pipeline = Pipeline().then(self.prefill).then(Emit())
        self.service: Service[TokenBatch] = Service(
            pipeline.then(Awaiting()) if awaits else pipeline
        )
        self.encode = encode
        self.sink = sink
        self.items: list[str] = []
        self.last: list[str] = []
        self.outcome: Finished | None = None
        self.task: int | None = None

    def opened(self) -> Opened[str]:
        opened = self.service.open(REQUEST, self.encode)
        assert isinstance(opened, Opened)
        opened.forwarded = True
        return cast("Opened[str]", opened)

    async def run(self) -> None:
        self.task = anyio.get_current_task().id
        async with self.opened() as stream:
            try:
                self.last = await stream.forward(self.take)
            finally:
                self.outcome = stream.outcome

    def take(self, items: list[str]) -> bool:
        self.items += items
        return self.sink(items)


async def test_it_needs_no_task_of_its_own() -> None:
    reading = Reading()
    async with reading.service, anyio.create_task_group() as tasks:
        tasks.start_soon(reading.run)
        await anyio.wait_all_tasks_blocked()
        assert reading.items == ["1"]
        reading.prefill.arrived.set()
    assert reading.prefill.task == reading.task
    assert reading.items + reading.last == ["1", "2", "3"]
    assert reading.outcome == END
    assert not reading.service.ledger.counts


async def test_behind_a_stage_that_awaits_it_has_one() -> None:
    reading = Reading(awaits=True)
    async with reading.service, anyio.create_task_group() as tasks:
        tasks.start_soon(reading.run)
        await anyio.wait_all_tasks_blocked()
        reading.prefill.arrived.set()
    assert reading.prefill.task != reading.task
    assert reading.items + reading.last == ["1", "2", "3"]
    assert reading.outcome == END


async def test_read_in_another_way_it_has_one() -> None:
    reading = Reading()
    reading.prefill.arrived.set()
    async with reading.service, reading.opened() as stream:
        assert [item async for items in stream for item in items] == ["1", "2", "3"]
    assert reading.prefill.task != anyio.get_current_task().id


async def test_an_end_before_the_kv_cache_has_come_ends_the_work() -> None:
    reading = Reading(StopAtOne)
    async with reading.service, anyio.create_task_group() as tasks:
        tasks.start_soon(reading.run)
    assert reading.prefill.cancelled
    assert reading.last == ["1"]
    assert reading.outcome == Finished("stop", "one")
    assert not reading.service.ledger.counts


async def test_a_sink_that_fails_ends_the_work() -> None:
    def fail(_items: list[str]) -> bool:
        raise BrokenPipeError("gone")

    reading = Reading(sink=fail)
    async with reading.service:
        with pytest.raises(BrokenPipeError, match="gone"):
            await reading.run()
    assert reading.prefill.cancelled
    assert not reading.service.ledger.counts


async def test_a_sink_that_is_full_keeps_nothing_from_being_produced() -> None:
    reading = Reading(sink=lambda _: False)
    reading.prefill.arrived.set()
    async with reading.service, reading.opened() as stream:
        assert await stream.forward(reading.take) == []
        assert reading.items == ["1"]
        assert await stream.forward(reading.take) == ["2", "3"]
    assert not reading.prefill.cancelled


async def test_a_reader_that_leaves_ends_the_work() -> None:
    reading = Reading()
    async with reading.service, anyio.create_task_group() as tasks:
        tasks.start_soon(reading.run)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert reading.prefill.cancelled
    assert reading.outcome is None  # nothing was said: its closing says that the reader has left
    assert not reading.service.ledger.counts


async def test_a_reader_that_does_not_begin_starts_nothing() -> None:
    reading = Reading()
    async with reading.service:
        async with reading.opened() as stream:
            await anyio.wait_all_tasks_blocked()
        assert stream.outcome is not None
        assert stream.outcome.reason == "cancelled"
    assert not reading.prefill.began
    assert not reading.service.ledger.counts


@pytest.mark.parametrize("begun", [False, True])
async def test_failed_from_outside_it_tells_its_reader(*, begun: bool) -> None:
    reading = Reading()
    fault = EngineFault("too slow")
    async with reading.service, reading.opened() as stream:

        async def read() -> None:
            reading.last = await stream.forward(reading.take)

        async with anyio.create_task_group() as tasks:
            if begun:
                tasks.start_soon(read)
                await anyio.wait_all_tasks_blocked()
                stream.fail(fault)
            else:
                stream.fail(fault)
                tasks.start_soon(read)
        assert stream.outcome == Finished.failed(fault)
        assert reading.prefill.cancelled == reading.prefill.began == begun
    assert not reading.service.ledger.counts


async def test_it_hears_of_the_end_of_its_service() -> None:
    reading = Reading()
    async with anyio.create_task_group() as tasks, reading.service:
        tasks.start_soon(reading.run)
        await anyio.wait_all_tasks_blocked()
    assert reading.prefill.cancelled
    assert reading.outcome is not None
    assert isinstance(reading.outcome.error, NotReady)
    assert not reading.service.ledger.counts
