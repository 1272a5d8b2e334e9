"""Clients that leave over a real socket, in every phase of a request: all it held comes back.

For each phase there is a place to be stuck in. The client leaves there; the engine is let go only
when everything is back already, and the only slot then serves the next one.
"""

from __future__ import annotations

import logging
import socket
import struct
from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager
from typing import Any, Literal

import anyio
import anyio.lowlevel
import orjson
import pytest

from tilert_engine.scripted import Script
from tilert_stream.abc import Receive, Send
from tilert_stream.events import Prefilled, Reserved, TextDelta
from tilert_stream.http import Server, ServerSettings
from tilert_stream.scope import RequestScope
from tilert_stream.testing import Gate
from tilert_stream.testing.apps import ScriptedApp

MAX_TOKENS = 40
How = Literal["fin", "rst"]


class Stand:
    """A place in the pipeline where requests stand until it is opened."""

    def __init__(self) -> None:
        self.reached = anyio.Event()
        self.opened = False

    async def arrival(self) -> None:
        await self.reached.wait()

    def open(self) -> None:
        self.opened = True

    async def stand(self) -> None:
        self.reached.set()
        if not self.opened:
            await anyio.sleep_forever()


class AfterReserve(Stand):
    """Accepted, and nothing begun."""

    async def call(self, item: Reserved, _scope: RequestScope) -> Reserved:
        await self.stand()
        return item


class BetweenLegs(Stand):
    """The first token has left, the KV cache has not begun to travel."""

    async def call(self, item: Prefilled, _scope: RequestScope) -> Prefilled:
        await self.stand()
        return item


class AfterLastToken(Stand):
    """The engine is done; the end of the answer is held up."""

    async def run(self, receive: Receive[TextDelta], send: Send[TextDelta]) -> None:
        async for item in receive:
            await send(item)
        await self.stand()


class InEngine:
    """The engine's thread stands before turn ``number`` of ``hook``, for as long as it is told."""

    def __init__(self, hook: str, number: int, gates: ExitStack) -> None:
        gate = gates.enter_context(Gate())
        self.arrival = gate.arrival
        self.open = gate.open

        def stand(turn: int) -> None:
            if turn == number:
                gate.pass_through(turn)

        hooks: dict[str, Any] = {hook: stand}
        self.script = Script(chunks=2, **hooks)


ENGINE = {
    "prefilling": ("before_chunk", 0),
    "before the first token": ("before_chunk", 1),
    "importing": ("before_import", 0),
    "streaming": ("before_chain", 5),
    "before the last token": ("before_chain", MAX_TOKENS - 2),
}
STAGES: dict[str, tuple[type[Stand], str]] = {
    "reserved": (AfterReserve, "reserve"),
    "between legs": (BetweenLegs, "prefill"),
    "finishing": (AfterLastToken, "detokenize"),
}
SENT_BY_THEN = ("importing", "streaming", "before the last token", "between legs", "finishing")
"""Phases by which the first token of a stream has left."""


class Client:
    """A bare socket."""

    def __init__(self, port: int) -> None:
        self._sock = socket.create_connection(("127.0.0.1", port))
        self._sock.setblocking(False)

    def post(self, *, stream: bool) -> None:
        body = orjson.dumps({"prompt": "the quick", "max_tokens": MAX_TOKENS, "stream": stream})
        head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n"
        self._sock.send(head.encode() + b"connection: close\r\n\r\n" + body)

    async def read(self) -> bytes:
        await anyio.wait_readable(self._sock)
        return self._sock.recv(65536)

    async def read_all(self) -> bytes:
        answer = b""
        while data := await self.read():
            answer += data
        return answer

    def leave(self, how: How) -> None:
        if how == "rst":
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        anyio.notify_closing(self._sock)
        self._sock.close()


@asynccontextmanager
async def serving(app: ScriptedApp) -> AsyncGenerator[tuple[Server, int]]:
    server = Server(app, ServerSettings(port=0), on_drain=app.service.drain)
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            ((_, port),) = await tasks.start(server.serve)
            try:
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
    with ExitStack() as gates:
        place: InEngine | Stand
        if phase in ENGINE:
            place = InEngine(*ENGINE[phase], gates)
            app = ScriptedApp(place.script, slots=1)
        else:
            stage, anchor = STAGES[phase]
            place = stage()
            app = ScriptedApp(slots=1)
            pipeline = app.service.pipeline
            app.service.pipeline = pipeline.insert(place, where="after", anchor=anchor)
        async with serving(app) as (server, port):
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
    with ExitStack() as gates:
        place = InEngine("before_chain", 5, gates)
        app = ScriptedApp(place.script, slots=1)
        async with serving(app) as (server, port):
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
