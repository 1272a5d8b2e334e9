"""A service that ends while requests live, and what its own user raises in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from tilert_stream.abc import Receive, Send
from tilert_stream.errors import EngineDied, NotReady
from tilert_stream.events import GenerateRequest, TokenBatch
from tilert_stream.pipeline import Pipeline
from tilert_stream.service import Service
from tilert_stream.testing import make_request

if TYPE_CHECKING:
    from collections.abc import Callable

    from tilert_stream.scope import RequestScope


class Stuck:
    """A step that never answers."""

    def __init__(self) -> None:
        self.reached = anyio.Event()

    async def call(self, item: GenerateRequest, scope: RequestScope) -> GenerateRequest:
        self.reached.set()
        await anyio.sleep_forever()
        return item


class Emit:
    """Puts one token and no end."""

    async def produce(self, item: GenerateRequest, scope: RequestScope) -> TokenBatch | None:
        scope.mailbox.put(TokenBatch((1,)))
        return None


class Through:
    async def run(self, receive: Receive[TokenBatch], send: Send[TokenBatch]) -> None:
        async for batch in receive:
            await send(batch)


class Worker:
    """Notes what is done with it; ``start`` raises if it is told to."""

    def __init__(self, log: list[str], *, fails: bool = False) -> None:
        self.log = log
        self.fails = fails

    def start(self, on_death: Callable[[EngineDied], object]) -> None:
        if self.fails:
            raise OSError("no such device")
        self.log.append("start")

    def stop(self) -> None:
        self.log.append("stop")


async def read(service: Service[TokenBatch], begun: anyio.Event, errors: list[NotReady]) -> None:
    try:
        async for _ in service.stream(make_request()):
            begun.set()
    except NotReady as error:
        errors.append(error)


async def test_a_reader_that_outlives_the_service_hears_of_its_end() -> None:
    stuck = Stuck()
    service = Service(Pipeline().then(stuck).then(Emit()))
    errors: list[NotReady] = []
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks, service:
            tasks.start_soon(read, service, anyio.Event(), errors)
            await stuck.reached.wait()
    assert len(errors) == 1
    assert service.ledger.counts == {}


async def test_a_reader_behind_an_awaiting_stage_hears_of_it_too() -> None:
    service = Service(Pipeline().then(Emit()).then(Through()))
    begun = anyio.Event()
    errors: list[NotReady] = []
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks, service:
            tasks.start_soon(read, service, begun, errors)
            await begun.wait()
    assert len(errors) == 1
    assert service.ledger.counts == {}


async def test_what_is_raised_inside_comes_out_as_it_is() -> None:
    service = Service(Pipeline().then(Emit()))
    error = ValueError("mine")
    with pytest.raises(ValueError, match="mine") as caught:
        async with service:
            raise error
    assert caught.value is error


async def test_a_worker_that_cannot_start_says_so_and_the_others_are_stopped() -> None:
    log: list[str] = []
    service = Service(
        Pipeline().then(Emit()), workers=[Worker(log), Worker(log, fails=True), Worker(log)]
    )
    with pytest.raises(OSError, match="no such device"):
        async with service:
            pytest.fail("it must not come up")
    assert log == ["start", "stop", "stop", "stop"]
    assert not service.ready


async def test_a_service_that_drained_is_ready_again_in_its_next_life() -> None:
    service = Service(Pipeline().then(Emit()))
    async with service:
        service.drain()
        assert not service.ready
    async with service:
        assert service.ready


async def test_two_may_wait_for_the_death_of_an_engine() -> None:
    class Dying:
        def start(self, on_death: Callable[[EngineDied], object]) -> None:
            self.on_death = on_death

        def stop(self) -> None:
            pass

    worker = Dying()
    service = Service(Pipeline().then(Emit()), workers=[worker])
    heard: list[EngineDied] = []

    async def listen() -> None:
        heard.append(await service.died())

    with anyio.fail_after(60):
        async with service, anyio.create_task_group() as tasks:
            tasks.start_soon(listen)
            tasks.start_soon(listen)
            await anyio.wait_all_tasks_blocked()
            worker.on_death(EngineDied("gone"))
    assert len(heard) == 2
