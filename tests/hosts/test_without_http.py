"""The service alone: ``async with service: async for delta in service.stream(request)``.

The same things are asked of it as of every server.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import ExitStack, aclosing, asynccontextmanager
from typing import Any

import anyio
import pytest

from tests.conftest import BACKENDS
from tests.hosts.faults import Fault, Turnstile
from tests.leaving import (
    ENGINE,
    MAX_TOKENS,
    SENT_BY_THEN,
    STAGES,
    InEngine,
    app_that_stands_in,
)
from tilert_stream.errors import EngineFault
from tilert_stream.events import GenerateRequest, Limits, TextDelta
from tilert_stream.service import Service
from tilert_stream.testing.apps import ScriptedApp
from tilert_stream.trace import TraceEvent

PROMPT = tuple(b"the quick")
LIMIT = 60
"""Seconds."""


@pytest.fixture(params=BACKENDS)
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return request.param


def request_for(name: str = "one", max_tokens: int = MAX_TOKENS) -> GenerateRequest:
    return GenerateRequest(id=name, prompt_ids=PROMPT, limits=Limits(max_tokens))


class Listener:
    """One reader of one answer, in a task of its own."""

    def __init__(
        self, service: Service[TextDelta], *, name: str = "one", until: int = 9999
    ) -> None:
        self._service = service
        self._request = request_for(name)
        self._until = until
        self.scope = anyio.CancelScope()
        self.ended = anyio.Event()
        self.text = ""

    async def run(self) -> None:
        with self.scope:
            async with aclosing(self._service.stream(self._request)) as deltas:
                async for delta in deltas:
                    self.text += delta.text
                    if len(self.text) >= self._until:
                        break
        self.ended.set()


@asynccontextmanager
async def running(app: ScriptedApp, gates: ExitStack) -> AsyncGenerator[anyio.abc.TaskGroup]:
    """The service of ``app`` entered; a failure opens the gates, for the engine's thread to end."""
    with anyio.fail_after(LIMIT):
        async with app.service:
            with gates:
                async with anyio.create_task_group() as tasks:
                    yield tasks
    assert app.service.ledger.counts == {}
    assert app.decode_engine.busy == {}


async def test_every_delta_comes_before_the_next_token_is_made() -> None:
    turnstile = Turnstile(4)
    service = ScriptedApp(turnstile.script).service
    pieces: list[str] = []
    with anyio.fail_after(LIMIT):
        async with service:
            with turnstile:
                gates = iter(turnstile.gates)
                async for delta in service.stream(request_for(max_tokens=5)):
                    pieces.append(delta.text)
                    if gate := next(gates, None):
                        await gate.arrival()
                        gate.open()
    assert pieces == list("the q")
    assert service.ledger.counts == {}


async def test_a_failure_is_raised_behind_the_text_before_it() -> None:
    gates = ExitStack()
    fault = Fault(2, gates)
    app = ScriptedApp(fault.script)
    async with running(app, gates):
        fault.strike()
        listener = Listener(app.service)
        with pytest.raises(EngineFault, match="the cache is full"):
            await listener.run()
        assert app.service.ledger.counts == {}
    assert listener.text == "the"


@pytest.mark.parametrize("phase", [*ENGINE, *STAGES])
async def test_dis_02_cancelled_in_every_phase(phase: str) -> None:
    gates = ExitStack()
    place, app = app_that_stands_in(phase, gates)
    async with running(app, gates) as tasks:
        listener = Listener(app.service)
        tasks.start_soon(listener.run)
        await place.arrival()
        listener.scope.cancel()
        await listener.ended.wait()
        assert app.service.ledger.counts == {}
        place.open()
        following = Listener(app.service)
        await following.run()
        assert len(following.text) == MAX_TOKENS


async def test_dis_02_cancelled_in_the_queue() -> None:
    gates = ExitStack()
    place = InEngine("before_chain", 5, gates)
    in_line = {name: anyio.Event() for name in ("one", "two")}

    def trace(event: TraceEvent) -> None:
        if (event.name, event.phase) == ("reserve", "started"):
            in_line[event.request_id].set()

    app = ScriptedApp(place.script, slots=1, trace=trace)
    async with running(app, gates) as tasks:
        first = Listener(app.service)
        tasks.start_soon(first.run)
        await place.arrival()
        held = dict(app.service.ledger.counts)
        second = Listener(app.service, name="two")
        tasks.start_soon(second.run)
        await in_line["two"].wait()
        assert app.service.ledger.counts != held
        second.scope.cancel()
        await second.ended.wait()
        assert app.service.ledger.counts == held
        place.open()
        await first.ended.wait()
        assert len(first.text) == MAX_TOKENS


@pytest.mark.parametrize("phase", [phase for phase in ENGINE if phase in SENT_BY_THEN])
async def test_dis_01_the_loop_is_left(phase: str) -> None:
    """While the engine is busy for it: it stops before its next chain."""
    gates = ExitStack()
    place, app = app_that_stands_in(phase, gates)
    async with running(app, gates) as tasks:
        listener = Listener(app.service, until=1)
        tasks.start_soon(listener.run)
        await listener.ended.wait()
        assert listener.text.startswith("t")
        assert app.service.ledger.counts == {}
        place.open()
        following = Listener(app.service)
        await following.run()
        assert len(following.text) == MAX_TOKENS
