from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import aclosing

import anyio
import pytest

from tilert_stream.abc import Receive, Send
from tilert_stream.errors import Busy, EngineDied, NotReady, TilertStreamError
from tilert_stream.events import Finished, GenerateRequest, TokenBatch
from tilert_stream.pipeline import Pipeline
from tilert_stream.scope import RequestScope
from tilert_stream.service import Service
from tilert_stream.testing import make_request

REQUEST = make_request()


class Emit:
    """``count`` batches, then the end, unless it stands still there."""

    def __init__(self, count: int = 3, *, error: Exception | None = None) -> None:
        self.count = count
        self.error = error
        self.stuck = False
        self.stuck_first = False
        self.reached = anyio.Event()

    async def produce(self, item: GenerateRequest, scope: RequestScope) -> TokenBatch | None:
        scope.lease.hold("slot", lambda _reason: None)
        if self.stuck_first:
            await self.stand_still()
        for number in range(self.count):
            scope.mailbox.put(TokenBatch((number,)))
        if self.error is not None:
            raise self.error
        if self.stuck:
            await self.stand_still()
        scope.mailbox.put(Finished("length"))
        return None

    async def stand_still(self) -> None:
        self.reached.set()
        await anyio.sleep_forever()


class Number:
    def __init__(self, _scope: RequestScope) -> None: ...

    def feed(self, item: TokenBatch) -> Iterable[int]:
        return item.ids

    def finish(self, _outcome: Finished) -> Iterable[int]:
        return ()


class Pass:
    async def run(self, receive: Receive[int], send: Send[int]) -> None:
        async for item in receive:
            await send(item)


class Text:
    """An encoder."""

    def __init__(self, _scope: RequestScope) -> None: ...

    def feed(self, item: int) -> Iterable[str]:
        yield str(item)

    def finish(self, outcome: Finished) -> Iterable[str]:
        yield outcome.reason


class FakeWorker:
    die: Callable[[EngineDied], object]

    def __init__(self) -> None:
        self.log: list[str] = []

    def start(self, on_death: Callable[[EngineDied], object]) -> None:
        self.log.append("start")
        self.die = on_death

    def stop(self) -> None:
        self.log.append("stop")


def service_of(source: Emit, *workers: FakeWorker, awaiting: bool = False) -> Service[int]:
    pipeline = Pipeline().then(source).then(Number)
    return Service(pipeline.then(Pass()) if awaiting else pipeline, workers=workers)


async def read_into(got: list[int], service: Service[int]) -> None:
    async with aclosing(service.stream(REQUEST)) as items:
        async for item in items:
            got += [item]


@pytest.mark.parametrize("awaiting", [False, True])
async def test_an_answer_item_by_item(*, awaiting: bool) -> None:
    async with service_of(Emit(), awaiting=awaiting) as service:
        assert [item async for item in service.stream(REQUEST)] == [0, 1, 2]
        assert service.ledger.counts == {}


async def test_an_answer_through_an_encoder() -> None:
    async with service_of(Emit()) as service:
        async with service.open(REQUEST, Text) as stream:
            items = [item async for some in stream for item in some]
        assert items == ["0", "1", "2", "length"]
        assert service.ledger.counts == {}


@pytest.mark.parametrize("awaiting", [False, True])
async def test_a_failed_request_raises_its_error(*, awaiting: bool) -> None:
    error = Busy("later")
    got: list[int] = []
    async with service_of(Emit(error=error), awaiting=awaiting) as service:
        with pytest.raises(Busy) as caught:
            await read_into(got, service)
        assert caught.value is error
        assert got == [0, 1, 2]
        assert service.ledger.counts == {}


async def test_an_error_leaves_the_service_as_it_is() -> None:
    error = Busy("later")

    async def use() -> None:
        async with service_of(Emit(error=error)) as service:
            async for _ in service.stream(REQUEST):
                pass

    with pytest.raises(Busy) as caught:
        await use()
    assert caught.value is error


@pytest.mark.parametrize("awaiting", [False, True])
async def test_leaving_the_loop_gives_everything_back(*, awaiting: bool) -> None:
    source = Emit()
    source.stuck = True
    async with service_of(source, awaiting=awaiting) as service:
        async with aclosing(service.stream(REQUEST)) as items:
            async for item in items:
                assert item == 0
                assert service.ledger.counts == {"lease": 1, "slot": 1}
                break
        assert service.ledger.counts == {}

        closed = service.stream(REQUEST)
        assert await anext(closed) == 0
        await closed.aclose()
        assert service.ledger.counts == {}


@pytest.mark.parametrize("awaiting", [False, True])
async def test_a_cancelled_reader_gives_everything_back(*, awaiting: bool) -> None:
    source = Emit()
    source.stuck = True
    got: list[int] = []
    async with service_of(source, awaiting=awaiting) as service:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read_into, got, service)
            await source.reached.wait()
            tasks.cancel_scope.cancel()
        assert service.ledger.counts == {}


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("awaiting", [False, True])
async def test_a_service_that_is_left_ends_its_readers(*, awaiting: bool, first: bool) -> None:
    source = Emit(40)
    source.stuck, source.stuck_first = not first, first
    service = service_of(source, awaiting=awaiting)
    ends: list[TilertStreamError] = []
    got: list[int] = []

    async def read() -> None:
        try:
            await read_into(got, service)
        except TilertStreamError as error:
            ends.append(error)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks, service:
            tasks.start_soon(read)
            await source.reached.wait()
            await anyio.wait_all_tasks_blocked()
    assert len(ends) == 1
    assert got == ([] if first else list(range(40)))
    assert service.ledger.counts == {}


async def test_it_must_be_entered() -> None:
    service = service_of(Emit())
    assert not service.ready
    with pytest.raises(NotReady, match=r"enter app\.lifespan"):
        service.open(REQUEST, Text)
    with pytest.raises(NotReady, match="not running"):
        await anext(service.stream(REQUEST))
    with pytest.raises(NotReady, match="not running"):
        await service.died()


async def test_workers_live_as_long_as_the_service_is_entered() -> None:
    workers = FakeWorker(), FakeWorker()
    service = service_of(Emit(), *workers)
    for _ in range(2):
        async with service:
            assert service.ready
            assert [worker.log[-1] for worker in workers] == ["start", "start"]
            assert [item async for item in service.stream(REQUEST)] == [0, 1, 2]
        assert not service.ready
        assert [worker.log[-1] for worker in workers] == ["stop", "stop"]


async def test_it_is_entered_once_at_a_time() -> None:
    worker = FakeWorker()

    async def enter_twice() -> None:
        async with service:
            await service.__aenter__()

    service = service_of(Emit(), worker)
    with pytest.raises(RuntimeError, match="already been entered"):
        await enter_twice()
    assert worker.log == ["start", "stop"]
    async with service:
        assert service.ready


async def test_draining_is_over_when_it_is_entered_again() -> None:
    service = service_of(Emit())
    async with service:
        service.drain()
        assert not service.ready
        assert [item async for item in service.stream(REQUEST)] == [0, 1, 2], "still served"
    async with service:
        assert service.ready


async def test_a_dead_engine() -> None:
    worker = FakeWorker()
    death = EngineDied("the engine died")
    service = service_of(Emit(), worker)
    async with service:
        assert service.ready
        worker.die(death)
        assert not service.ready
        assert await service.died() is death
        with pytest.raises(EngineDied) as caught:
            service.open(REQUEST, Text)
        assert caught.value.message == death.message
        assert caught.value is not death, "its traceback would grow with every request"
        with pytest.raises(EngineDied):
            await anext(service.stream(REQUEST))
        assert service.ledger.counts == {}
    async with service:
        assert service.ready, "entered again, its engines are started again"


async def test_a_worker_that_cannot_start_stops_the_others() -> None:
    class Broken(FakeWorker):
        def start(self, on_death: Callable[[EngineDied], object]) -> None:
            raise OSError("no device")

    worker, broken = FakeWorker(), Broken()
    service = service_of(Emit(), worker, broken)

    async def enter() -> None:
        async with service:
            pytest.fail("entered without an engine")

    with pytest.raises(OSError, match="no device"):
        await enter()
    assert worker.log == ["start", "stop"]
    assert not service.ready


async def test_a_cancelled_service_still_stops_its_workers() -> None:
    worker = FakeWorker()
    entered = anyio.Event()
    async with anyio.create_task_group() as tasks:

        async def serve() -> None:
            async with service_of(Emit(), worker):
                entered.set()
                await anyio.sleep_forever()

        tasks.start_soon(serve)
        await entered.wait()
        tasks.cancel_scope.cancel()
    assert worker.log == ["start", "stop"]
