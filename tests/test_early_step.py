"""What a first step begins before its request has a task: when, once, and given back on failure."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, TypeAlias

import anyio
import anyio.lowlevel
import pytest

from tests.test_service import REQUEST, Emit, Number, Text
from tilert_stream.errors import PipelineError, StageError, TilertStreamError
from tilert_stream.events import Finished, GenerateRequest
from tilert_stream.pipeline import Pipeline
from tilert_stream.scope import RequestScope
from tilert_stream.service import Service
from tilert_stream.telemetry.record import RequestRecord


class Begun:
    """What a step has begun: something that can be seen to be gone."""


class Starting:
    """A first step that begins early, and notes in ``log`` what happens when."""

    def __init__(self, log: list[str], *, error: Exception | None = None) -> None:
        self.log = log
        self.error = error
        self.tasks: list[str] = []
        """Those that were there when it began."""
        self.begun: weakref.ref[Begun] | None = None

    def start_early(self, item: GenerateRequest, scope: RequestScope) -> None:
        assert item is scope.request is REQUEST
        self.tasks = [task.name or "" for task in anyio.get_running_tasks()]
        self.log.append("early")
        scope.lease.hold("begun", lambda reason: self.log.append(f"given back: {reason}"))
        scope.begun = begun = Begun()
        self.begun = weakref.ref(begun)
        if self.error is not None:
            raise self.error

    async def call(self, item: GenerateRequest, scope: RequestScope) -> GenerateRequest:
        assert isinstance(scope.begun, Begun)
        self.log.append("call")
        return item


class Second(Starting):
    """Another step that could begin early, if it were the first."""


class Making:
    """A factory that says when it makes; or raises."""

    def __init__(self, log: list[str], *, fails: bool = False) -> None:
        self.log = log
        self.fails = fails

    def __call__(self, scope: RequestScope) -> Number:
        self.log.append("made")
        if self.fails:
            raise ValueError("no")
        return Number(scope)


def no_stage(_scope: RequestScope) -> object:
    return 3


class Watching:
    """An observer."""

    def __init__(self) -> None:
        self.outcomes: list[Finished] = []

    def began(self, scope: RequestScope) -> None: ...

    def ended(self, scope: RequestScope, outcome: Finished) -> None:
        self.outcomes.append(outcome)

    def refused(self, record: RequestRecord, error: TilertStreamError) -> None: ...


Opening: TypeAlias = "Callable[[Service[int]], Awaitable[None]]"


async def by_open(service: Service[int]) -> None:
    async with service.open(REQUEST, Text) as stream:
        async for _ in stream:
            pass


async def by_stream(service: Service[int]) -> None:
    async with aclosing(service.stream(REQUEST)) as items:
        await _exhaust(items)


async def by_pipeline(service: Service[int]) -> None:
    observers = service.observers
    async with service.pipeline.open(REQUEST, ledger=service.ledger, observer=observers) as stream:
        await _exhaust(stream)


async def _exhaust(items: AsyncIterator[object]) -> None:
    async for _ in items:
        pass


every_opening = pytest.mark.parametrize("opening", [by_open, by_stream, by_pipeline])


@every_opening
async def test_it_begins_once_before_stages_are_made_and_before_its_task(opening: Opening) -> None:
    log: list[str] = []
    step = Starting(log)
    pipeline = Pipeline().then(step).then(Second(log)).then(Emit()).then(Making(log))
    async with Service(pipeline) as service:
        await opening(service)
        assert log == ["early", "made", "call", "call", "given back: length"]
        assert step.tasks
        assert f"request {REQUEST.id}" not in step.tasks
        assert service.ledger.counts == {}


@every_opening
async def test_only_the_first_link_is_asked(opening: Opening) -> None:
    """A step behind another has no item yet; nor has one that is no first step."""
    log: list[str] = []

    class Plain:
        async def call(self, item: GenerateRequest, scope: RequestScope) -> GenerateRequest:
            assert scope.begun is None
            scope.begun = Begun()
            log.append("plain")
            return item

    pipeline = Pipeline().then(Plain()).then(Second(log)).then(Emit()).then(Making(log))
    async with Service(pipeline) as service:
        await opening(service)
    assert log == ["made", "plain", "call"]


async def test_a_source_that_comes_first_may_begin_early() -> None:
    log: list[str] = []

    class StartingSource(Emit):
        def start_early(self, item: GenerateRequest, scope: RequestScope) -> None:
            assert item is REQUEST
            log.append("early")

    async with Service(Pipeline().then(StartingSource()).then(Making(log))) as service:
        await by_open(service)
    assert log == ["early", "made"]


@every_opening
@pytest.mark.parametrize("behind", ["transform", "no_stage"])
async def test_a_stage_that_cannot_be_made_gives_back_what_was_begun(
    opening: Opening, behind: str, caplog: pytest.LogCaptureFixture
) -> None:
    # What is logged is kept by pytest, and its traceback keeps the request.
    caplog.set_level(logging.CRITICAL)
    log: list[str] = []
    watching = Watching()
    step = Starting(log)
    stage: Any
    kind: type[TilertStreamError]
    if behind == "transform":
        stage, kind = Making(log, fails=True), StageError
    else:
        stage, kind = no_stage, PipelineError
    pipeline = Pipeline().then(step).then(Emit()).then(stage, name="broken")
    service: Service[int] = Service(pipeline)
    service.observers.add(watching)
    async with service:
        with pytest.raises(kind, match="broken"):
            await opening(service)
        assert [entry for entry in log if entry != "made"] == ["early", "given back: error"]
        assert service.ledger.counts == {}
        (outcome,) = watching.outcomes
        assert isinstance(outcome.error, kind)
        watching.outcomes.clear()
        del outcome
        for _ in range(3):
            await anyio.lowlevel.checkpoint()
        gc.collect()
        assert step.begun is not None
        assert step.begun() is None, "the service keeps nothing of it"


@every_opening
async def test_one_that_raises_has_begun_nothing(opening: Opening) -> None:
    log: list[str] = []
    error = TilertStreamError("no")
    watching = Watching()
    pipeline = Pipeline().then(Starting(log, error=error)).then(Emit()).then(Making(log))
    service: Service[int] = Service(pipeline)
    service.observers.add(watching)
    async with service:
        with pytest.raises(TilertStreamError) as caught:
            await opening(service)
        assert caught.value is error
        assert log == ["early", "given back: error"]
        assert service.ledger.counts == {}
        assert [outcome.error for outcome in watching.outcomes] == [error]


async def test_one_that_leaves_before_its_task_has_begun() -> None:
    log: list[str] = []
    service = Service(Pipeline().then(Starting(log)).then(Emit()).then(Making(log)))
    async with service:
        async with service.open(REQUEST, Text):
            assert service.ledger.counts["begun"] == 1
        assert log[:2] == ["early", "made"]
        assert sum(entry.startswith("given back") for entry in log) == 1
        assert service.ledger.counts == {}


async def test_a_service_that_ends_before_the_task_has_begun() -> None:
    log: list[str] = []
    service = Service(Pipeline().then(Starting(log)).then(Emit()).then(Making(log)))
    async with service:
        opened = service.open(REQUEST, Text)
        stream = await opened.__aenter__()
    async for _ in stream:
        pass
    await opened.__aexit__(None, None, None)
    assert sum(entry.startswith("given back") for entry in log) == 1
    assert service.ledger.counts == {}
