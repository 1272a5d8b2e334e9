"""Parts of a body that go to the server by a plain call, where nothing stands between."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from threading import Semaphore
from typing import Any

import anyio
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tests.asgi.conftest import Request
from tilert_engine.scripted import Script
from tilert_stream.asgi.wakes import SEND_NOW
from tilert_stream.errors import EngineFault
from tilert_stream.testing import Gate
from tilert_stream.testing.apps import ScriptedApp

STREAM = {
    "messages": [{"role": "user", "content": "hi"}],
    "max_tokens": 7,
    "stream": True,
}
PLAIN = {**STREAM, "stream": False}


class FakeServer:
    """Offers the extension, and keeps what comes by either way.

    :param stuck: after so many calls the kernel takes no more until ``freed``.
    """

    def __init__(self, stuck: int | None = None) -> None:
        self.messages: list[Message] = []
        self.parts: list[bytes] = []
        self.begun = self.finished = 0
        self.stuck = stuck
        self.ended = False
        self.full = anyio.Event()
        self.freed = anyio.Event()
        self.sent = Semaphore(0)

    def script(self) -> Script:
        """An engine that makes a token when the one before it has been sent."""

        def wait(_turn: int) -> None:
            self.sent.acquire(timeout=60)

        return Script(before_chain=wait)

    async def send(self, message: Message) -> None:
        assert not self.full.is_set() or self.finished, "it overtakes what is not finished"
        self.messages.append(message)
        if message["type"] == "http.response.body":
            self.sent.release()

    def send_now(
        self, body: bytes, start: Message | None = None, *, last: bool = False
    ) -> Callable[[], Awaitable[None]] | None:
        assert not self.full.is_set() or self.finished, "it overtakes what is not finished"
        if start is not None:
            self.messages.append(start)
        self.parts.append(body)
        self.ended = last
        self.sent.release()
        if len(self.parts) != self.stuck:
            return None
        self.full.set()
        return self._finish

    async def _finish(self) -> None:
        self.begun += 1
        await self.freed.wait()
        self.finished += 1

    @property
    def content(self) -> bytes:
        return b"".join([*self.parts, *(message["body"] for message in self.messages[1:])])

    async def serve(self, app: ASGIApp, request: Any, send: Send | None = None) -> None:
        request.scope["extensions"] = {SEND_NOW: self.send_now}
        await app(request.scope, request.receive, send or self.send)


async def test_the_last_part_is_sent_like_the_others(request_to: Request) -> None:
    """And no task takes a step for the end."""
    server = FakeServer()
    app = ScriptedApp(server.script())
    async with app.lifespan():
        await server.serve(app, request_to(app, body=STREAM))
    assert [message["type"] for message in server.messages] == ["http.response.start"]
    assert len(server.parts) == 7
    assert server.ended
    assert server.content.endswith(b"data: [DONE]\n\n")
    assert server.content.count(b'"content":') == 7


async def test_a_last_part_that_does_not_go_at_once_is_finished_by_the_task(
    request_to: Request,
) -> None:
    server = FakeServer(stuck=7)
    app = ScriptedApp(server.script())
    async with app.lifespan(), anyio.create_task_group() as tasks:
        tasks.start_soon(server.serve, app, request_to(app, body=STREAM))
        await server.full.wait()
        await anyio.wait_all_tasks_blocked()
        assert (server.begun, server.finished, server.ended) == (1, 0, True)
        server.freed.set()
    assert server.finished == 1
    assert app.service.ledger.counts == {}


async def test_a_failure_ends_nothing(request_to: Request) -> None:
    server = FakeServer()

    def fail(turn: int) -> None:
        server.sent.acquire(timeout=60)
        if turn == 3:
            raise EngineFault("broken")

    app = ScriptedApp(Script(before_chain=fail))
    async with app.lifespan():
        await server.serve(app, request_to(app, body=STREAM))
    assert server.parts
    assert not server.ended
    assert [message.get("more_body") for message in server.messages] == [None, True]
    assert b'"error"' in server.content


async def test_a_plain_answer_is_one_message(request_to: Request) -> None:
    app, server = ScriptedApp(Script()), FakeServer()
    async with app.lifespan():
        await server.serve(app, request_to(app, body=PLAIN))
    assert [message.get("more_body") for message in server.messages] == [None, False]
    assert server.parts == []


async def test_a_middleware_that_wraps_send_sees_every_message(request_to: Request) -> None:
    server = FakeServer()
    app = ScriptedApp(server.script())
    seen: list[Message] = []

    async def logged(scope: Scope, receive: Receive, send: Send) -> None:
        async def wrapped(message: Message) -> None:
            seen.append(message)
            await send(message)

        await app(scope, receive, wrapped)

    async with app.lifespan():
        await server.serve(logged, request_to(app, body=STREAM))
    assert server.parts == []
    assert seen == server.messages
    assert len(seen) == 8


async def test_nothing_overtakes_a_part_that_is_not_finished(request_to: Request) -> None:
    server = FakeServer(stuck=1)
    app = ScriptedApp(server.script())
    async with app.lifespan(), anyio.create_task_group() as tasks:
        tasks.start_soon(server.serve, app, request_to(app, body=STREAM))
        await server.full.wait()
        await anyio.wait_all_tasks_blocked()
        assert len(server.parts) == 1
        server.freed.set()
    assert server.finished == 1
    assert server.content.endswith(b"data: [DONE]\n\n")
    assert server.content.count(b'"content":') == 7


async def test_cancelled_while_a_part_is_not_finished(request_to: Request) -> None:
    server = FakeServer(stuck=1)
    app = ScriptedApp(server.script())
    async with app.lifespan():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.serve, app, request_to(app, body=STREAM))
            await server.full.wait()
            tasks.cancel_scope.cancel()
        server.sent.release(1000)
        assert server.begun == 1, "the server is told of what it will not finish"
        assert server.finished == 0
        assert not app.service.ledger.counts


async def test_cancelled_between_two_parts(request_to: Request) -> None:
    messages = parts = 0
    with Gate() as gate:
        app, server = ScriptedApp(Script(before_chain=gate.pass_through)), FakeServer()
        async with app.lifespan():
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(server.serve, app, request_to(app, body=STREAM))
                await gate.arrival()
                await anyio.wait_all_tasks_blocked()
                messages, parts = len(server.messages), len(server.parts)
                tasks.cancel_scope.cancel()
            gate.open()
            assert not app.service.ledger.counts
            answer = await request_to(app, body=PLAIN).run()
    assert answer.status == 200
    assert (messages, parts) == (1, 1)
    assert (len(server.messages), len(server.parts)) == (1, 1)
