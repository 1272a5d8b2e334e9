"""The end of a server: idle connections, busy ones, signals."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import pytest

from tilert_stream.http import Server, ServerSettings, run_until_signalled

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from tests.http.conftest import Serving

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
PLAIN = ServerSettings(port=0, lifespan="off")


class Gate:
    """An app that waits, before its answer or in the middle of it."""

    def __init__(self, *, before: bool) -> None:
        self.before = before
        self.reached = anyio.Event()
        self.opened = anyio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        if not self.before:
            await send({"type": "http.response.body", "body": b"part", "more_body": True})
        self.reached.set()
        await self.opened.wait()
        await send({"type": "http.response.body", "body": b"end"})


async def test_idle_connections_close_at_once(serving: Serving, echo: ASGIApp) -> None:
    async with serving(echo) as running:
        fresh, used = await running.connect(), await running.connect()
        await used.get()
        while running.server.connections < 2:
            await anyio.lowlevel.checkpoint()
        running.server.drain()
        assert await fresh.rest() == b""
        assert await used.rest() == b""


async def test_answers_not_begun_say_close(serving: Serving) -> None:
    app = Gate(before=True)
    async with serving(app) as running:
        client = await running.connect()
        await client.send(GET)
        await app.reached.wait()
        running.server.drain()
        app.opened.set()
        answer = await client.rest()
        assert b"\r\nconnection: close\r\n" in answer.lower()
        assert answer.endswith(b"3\r\nend\r\n0\r\n\r\n")


async def test_nothing_is_taken_behind_an_answer_that_says_close(serving: Serving) -> None:
    """The next request came too late: its client has been told where the connection ends."""
    app = Gate(before=True)
    async with serving(app) as running:
        client = await running.connect()
        await client.send(GET)
        await app.reached.wait()
        running.server.drain()
        await client.send(GET)
        app.opened.set()
        answer = await client.rest()
        assert b"\r\nconnection: close\r\n" in answer.lower()
        assert answer.endswith(b"3\r\nend\r\n0\r\n\r\n")
        client.close()
        await running.no_connections()
        assert running.server.statistics().requests_total == 1


async def test_answers_begun_end_and_then_close(serving: Serving) -> None:
    app = Gate(before=False)
    async with serving(app) as running:
        client = await running.connect()
        await client.send(GET)
        await app.reached.wait()
        running.server.drain()
        refused = False
        while not refused:
            try:
                await running.connect()
            except ConnectionRefusedError:
                refused = True
            await anyio.lowlevel.checkpoint()
        app.opened.set()
        assert (await client.rest()).endswith(b"3\r\nend\r\n0\r\n\r\n")


async def test_request_half_sent_is_served(serving: Serving, echo: ASGIApp) -> None:
    async with serving(echo) as running:
        client = await running.connect()
        await client.get()
        await client.send(GET[:10])
        for _ in range(5):
            await anyio.lowlevel.checkpoint()
        running.server.drain()
        await client.send(GET[10:])
        answer = await client.rest()
        assert b"\r\nconnection: close\r\n" in answer.lower()
        assert answer.endswith(b"GET / ")


async def test_who_waits_to_be_accepted_is_answered(serving: Serving, echo: ASGIApp) -> None:
    """Connected and asked, both before the loop could look: closing would reset them."""
    async with serving(echo) as running:
        clients = [await running.connect() for _ in range(20)]
        for client in clients[1:]:
            client.sock.send(GET)
        running.server.drain()
        assert await clients[0].rest() == b""
        for client in clients[1:]:
            answer = await client.rest()
            assert b"\r\nconnection: close\r\n" in answer.lower()
            assert answer.endswith(b"GET / ")
        assert running.server.statistics().accepted_total == 20


async def test_who_waits_for_a_free_place_is_answered(serving: Serving, echo: ASGIApp) -> None:
    settings = ServerSettings(port=0, lifespan="off", max_connections=1)
    async with serving(echo, settings) as running:
        clients = [await running.connect() for _ in range(3)]
        for client in clients:
            client.sock.send(GET)
        await anyio.wait_all_tasks_blocked()
        running.server.drain()
        answers = [await client.rest() for client in clients[1:]]
        assert all(answer.endswith(b"GET / ") for answer in answers)


async def test_request_that_has_just_come_to_an_idle_connection_is_answered(
    serving: Serving, echo: ASGIApp
) -> None:
    async with serving(echo) as running:
        client = await running.connect()
        await client.get()
        client.sock.send(GET)
        running.server.drain()
        assert (await client.rest()).endswith(b"GET / ")


async def test_drain_delay_serves_on_without_readiness(echo: ASGIApp) -> None:
    """Until the delay is over, or somebody cuts it short, nothing but the readiness changes."""
    ready = [True]
    settings = ServerSettings(port=0, lifespan="off", drain_delay=1000)
    server = Server(echo, settings, on_drain=ready.clear)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            (host, port), *_ = await group.start(server.serve)
            assert isinstance(port, int)
            server.drain()
            server.drain()
            assert server.draining
            assert not ready
            async with await anyio.connect_tcp(host, port) as stream:
                for _ in range(2):
                    await stream.send(GET)
                    assert b"connection: close" not in (await stream.receive()).lower()
                server.drain(at_once=True)
                with pytest.raises(anyio.EndOfStream):
                    await stream.receive()


async def test_cut_ends_the_drain(serving: Serving) -> None:
    app = Gate(before=False)
    async with serving(app) as running:
        client = await running.connect()
        await client.send(GET)
        await app.reached.wait()
        running.server.drain()
        running.server.cut()
        assert not (await client.rest()).endswith(b"0\r\n\r\n")
    assert running.server.statistics().cut_total == 1


async def test_cut_of_an_old_client_is_a_reset(serving: Serving) -> None:
    app = Gate(before=False)
    async with serving(app) as running:
        client = await running.connect()
        await client.send(b"GET / HTTP/1.0\r\n\r\n")
        await client.until(b"part")
        running.server.cut()
        with pytest.raises(ConnectionResetError):
            await client.rest()


async def test_cut_before_serving_ends_it_at_once(echo: ASGIApp) -> None:
    server = Server(echo, PLAIN)
    server.cut()
    with anyio.fail_after(60):
        await server.serve()


async def test_cancelling_serve_closes_everything(echo: ASGIApp) -> None:
    app = Gate(before=False)
    server = Server(app, PLAIN)
    async with anyio.create_task_group() as group:
        addresses = await group.start(server.serve)
        async with await anyio.connect_tcp(*addresses[0]) as stream:
            await stream.send(GET)
            await app.reached.wait()
            group.cancel_scope.cancel()
    assert server.connections == 0


async def test_first_signal_drains_second_cuts() -> None:
    app = Gate(before=False)
    ready: list[bool] = [True]
    server = Server(app, PLAIN, on_drain=lambda: ready.append(server.draining))
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            addresses = await group.start(run_until_signalled, server)
            async with await anyio.connect_tcp(*addresses[0]) as stream:
                await stream.send(GET)
                await app.reached.wait()
                os.kill(os.getpid(), signal.SIGTERM)
                while not server.draining:
                    await anyio.lowlevel.checkpoint()
                assert ready == [True, False]
                assert server.statistics().requests == 1
                os.kill(os.getpid(), signal.SIGINT)
                received = b"".join([part async for part in stream])
                assert not received.endswith(b"0\r\n\r\n")
    assert server.connections == 0


async def test_signal_ends_an_idle_server(echo: ASGIApp) -> None:
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            await group.start(run_until_signalled, Server(echo, PLAIN))
            os.kill(os.getpid(), signal.SIGTERM)
