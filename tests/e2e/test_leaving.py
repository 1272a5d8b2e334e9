"""Clients that leave over a real socket, in every phase of a request: all it held comes back.

For each phase there is a place to be stuck in. The client leaves there; the engine is let go only
when everything is back already, and the only slot then serves the next one.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager

import anyio
import anyio.lowlevel
import pytest

from tests.leaving import ENGINE, SENT_BY_THEN, STAGES, Client, How, app_that_stands_in
from tilert_stream.http import Server, ServerSettings
from tilert_stream.testing.apps import ScriptedApp


@asynccontextmanager
async def serving(app: ScriptedApp, gates: ExitStack) -> AsyncGenerator[tuple[Server, int]]:
    server = Server(app, ServerSettings(port=0), on_drain=app.service.drain)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            ((_, port),) = await tasks.start(server.serve)
            try:
                with gates:
                    yield server, port
            finally:
                server.drain()


async def assert_left(server: Server, app: ScriptedApp, held: dict[str, int]) -> None:
    """The server has seen one client leave, and nothing of it is held any more."""
    while not server.statistics().gone_total:
        await anyio.lowlevel.checkpoint()
    assert app.service.ledger.counts == held
    assert server.statistics().refused_total == 0


async def assert_served(port: int) -> None:
    client = Client(port)
    client.post(stream=True)
    answer = await client.read_all()
    client.leave("fin")
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"data: [DONE]" in answer


def assert_quiet(caplog: pytest.LogCaptureFixture) -> None:
    assert [r.getMessage() for r in caplog.records if r.levelno > logging.INFO] == []


@pytest.mark.parametrize("how", ["fin", "rst"])
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "plain"])
@pytest.mark.parametrize("phase", [*ENGINE, *STAGES])
async def test_dis_02_leaving_in_every_phase(
    phase: str, *, stream: bool, how: How, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    gates = ExitStack()
    place, app = app_that_stands_in(phase, gates)
    async with serving(app, gates) as (server, port):
        client = Client(port)
        client.post(stream=stream)
        await place.arrival()
        if stream and phase in SENT_BY_THEN:
            assert b'"text":"t' in await client.read()
        client.leave(how)
        await assert_left(server, app, {})
        place.open()
        await assert_served(port)
    assert app.service.ledger.counts == {}
    assert app.decode_engine.busy == {}
    assert_quiet(caplog)


@pytest.mark.parametrize("how", ["fin", "rst"])
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "plain"])
async def test_dis_02_leaving_the_queue(
    *, stream: bool, how: How, caplog: pytest.LogCaptureFixture
) -> None:
    """Who waits for the slot that another has: the other one does not notice."""
    caplog.set_level(logging.INFO)
    gates = ExitStack()
    place, app = app_that_stands_in("streaming", gates)
    async with serving(app, gates) as (server, port):
        first = Client(port)
        first.post(stream=True)
        await place.arrival()
        held = dict(app.service.ledger.counts)
        assert held
        client = Client(port)
        client.post(stream=stream)
        while app.service.ledger.counts == held:
            await anyio.lowlevel.checkpoint()
        client.leave(how)
        await assert_left(server, app, held)
        place.open()
        assert b"data: [DONE]" in await first.read_all()
        first.leave("fin")
        await assert_served(port)
    assert app.service.ledger.counts == {}
    assert app.decode_engine.busy == {}
    assert_quiet(caplog)
