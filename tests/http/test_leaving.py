"""Clients that leave, or seem to: FIN, RST, half-close, in every phase of an answer."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import pytest
from starlette.applications import Starlette
from starlette.responses import StreamingResponse
from starlette.routing import Route

from tilert_stream.http import ClientGone, ServerSettings
from tilert_stream.http.exchange import BODY_HIGH_WATER

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send

    from tests.http.conftest import Client, Serving

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
START: dict[str, object] = {"type": "http.response.start", "status": 200, "headers": []}


def leave(client: Client, how: str) -> None:
    if how == "fin":
        client.close()
    else:
        client.reset()


@pytest.mark.parametrize("how", ["fin", "rst"])
async def test_client_leaves_while_the_app_computes(serving: Serving, how: str) -> None:
    told = anyio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        assert (await receive())["type"] == "http.request"
        assert (await receive())["type"] == "http.disconnect"
        with pytest.raises(ClientGone):
            await send(START)
        told.set()

    async with serving(app) as running:
        client = await running.connect()
        await client.send(GET)
        await anyio.wait_all_tasks_blocked()
        leave(client, how)
        await told.wait()
        await running.no_connections()
        assert running.server.statistics().gone_total == 1


@pytest.mark.parametrize("how", ["fin", "rst"])
async def test_client_leaves_while_it_is_streamed_to(serving: Serving, how: str) -> None:
    told = anyio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(START)
        await send({"type": "http.response.body", "body": b"one", "more_body": True})
        assert (await receive())["type"] == "http.request"
        assert (await receive())["type"] == "http.disconnect"
        with pytest.raises(ClientGone):
            await send({"type": "http.response.body", "body": b"two", "more_body": True})
        told.set()

    async with serving(app) as running:
        client = await running.connect()
        await client.send(GET)
        await client.until(b"one")
        leave(client, how)
        await told.wait()
        await running.no_connections()
        assert running.server.statistics().gone_total == 1


@pytest.mark.parametrize("how", ["fin", "rst"])
async def test_client_leaves_while_a_write_waits(serving: Serving, how: str) -> None:
    told = anyio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(START)
        try:
            while True:
                await send({"type": "http.response.body", "body": bytes(65536), "more_body": True})
        except ClientGone:
            told.set()

    async with serving(app) as running:
        client = await running.connect(receive_buffer=4096)
        await client.send(GET)
        await anyio.wait_all_tasks_blocked()
        leave(client, how)
        await told.wait()
        await running.no_connections()


@pytest.mark.parametrize("how", ["fin", "rst"])
async def test_client_leaves_in_its_body(serving: Serving, how: str) -> None:
    begun, told = anyio.Event(), anyio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        begun.set()
        while (await receive())["type"] != "http.disconnect":
            pass
        told.set()

    async with serving(app) as running:
        client = await running.connect()
        await client.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nhalf")
        await begun.wait()
        leave(client, how)
        await told.wait()
        await running.no_connections()


@pytest.mark.parametrize("how", ["fin", "rst"])
@pytest.mark.parametrize("sent", [b"", b"GET /"])
async def test_client_leaves_before_a_request(
    serving: Serving, echo: ASGIApp, how: str, sent: bytes
) -> None:
    async with serving(echo) as running:
        client = await running.connect()
        await client.get()
        await client.send(sent)
        await anyio.wait_all_tasks_blocked()
        leave(client, how)
        await running.no_connections()
        statistics = running.server.statistics()
        assert (statistics.refused_total, statistics.requests_total) == (0, 1)


async def test_dis_08_half_close_means_gone(serving: Serving) -> None:
    told = anyio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        told.set()

    async with serving(app) as running:
        client = await running.connect()
        await client.send(GET)
        client.end_output()
        await told.wait()
        await running.no_connections()


async def test_dis_08_half_close_allowed(serving: Serving, echo: ASGIApp) -> None:
    proceed = anyio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/":
            await proceed.wait()
        await echo(scope, receive, send)

    async with serving(
        app, ServerSettings(port=0, lifespan="off", allow_half_close=True)
    ) as running:
        client = await running.connect()
        await client.send(GET + GET)
        client.end_output()
        # Behind an answer to another client the server has seen what was sent before.
        for _ in range(2):
            other = await running.connect()
            assert (await other.get("/other")).endswith(b"GET /other ")
        proceed.set()
        assert (await client.rest()).count(b"\r\n\r\nGET / ") == 2
        for each in running.clients[1:]:
            each.close()
        await running.no_connections()
        assert running.server.statistics().gone_total == 0


async def test_half_close_in_a_body_means_gone_always(serving: Serving) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    async with serving(
        app, ServerSettings(port=0, lifespan="off", allow_half_close=True)
    ) as running:
        client = await running.connect()
        await client.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nhalf")
        client.end_output()
        await running.no_connections()


async def test_dis_10_leaving_is_one_info_line(
    serving: Serving, caplog: pytest.LogCaptureFixture
) -> None:
    """At whichever byte of a streamed answer the client goes: no traceback, no 5xx."""
    caplog.set_level(logging.INFO, logger="tilert_stream.http")

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(START)
        while True:
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
            await anyio.lowlevel.checkpoint()

    async with serving(app) as running:
        for number in range(20):
            caplog.clear()
            client = await running.connect()
            await client.send(GET)
            for _ in range(number):
                await client.recv()
            leave(client, "fin" if number % 2 else "rst")
            await running.no_connections()
            (record,) = caplog.records
            assert record.levelno == logging.INFO
            assert record.exc_info is None


async def test_starlette_stream_is_cancelled_when_the_client_leaves(
    serving: Serving, caplog: pytest.LogCaptureFixture
) -> None:
    """The generator waits for a token that never comes: only the listener can end it."""
    ended = anyio.Event()

    async def tokens() -> AsyncGenerator[bytes, None]:
        try:
            yield b"first"
            await anyio.sleep_forever()
        finally:
            ended.set()

    async def endpoint(request: Request) -> StreamingResponse:
        return StreamingResponse(tokens())

    async with serving(Starlette(routes=[Route("/", endpoint)])) as running:
        client = await running.connect()
        await client.send(GET)
        await client.until(b"first")
        client.close()
        await ended.wait()
        await running.no_connections()
    assert not [record for record in caplog.records if record.levelno > logging.INFO]


async def test_pipelined_flood_closes_the_connection(serving: Serving) -> None:
    told = anyio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        told.set()

    settings = ServerSettings(port=0, lifespan="off", max_pipelined_bytes=1000)
    async with serving(app, settings) as running:
        client = await running.connect()
        await client.send(GET)
        await anyio.wait_all_tasks_blocked()
        await client.send(b"x" * 1000)
        await anyio.wait_all_tasks_blocked()
        assert running.server.statistics().requests == 1
        await client.send(b"x")
        await told.wait()
        await running.no_connections()


@pytest.mark.parametrize("late", [False, True])
async def test_an_app_can_be_called_when_the_client_leaves(serving: Serving, *, late: bool) -> None:
    """Without a task of its own that waits for it; one that asks too late is called at once."""
    asked, left = anyio.Event(), anyio.Event()

    async def app(scope: Scope, receive: Receive, _send: Send) -> None:
        asked.set()
        if late:
            await receive()
            assert (await receive())["type"] == "http.disconnect"
        scope["extensions"]["tilert_stream.on_disconnect"](left.set)
        await left.wait()

    async with serving(app) as running:
        client = await running.connect()
        await client.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await asked.wait()
        client.sock.close()
        await left.wait()


@pytest.mark.parametrize("size", [BODY_HIGH_WATER, 2 * BODY_HIGH_WATER])
async def test_nobody_is_called_behind_a_body_that_fills_its_buffer(
    serving: Serving, size: int
) -> None:
    """The socket is left alone then: the app hears so, and again once it has received."""
    told: list[bool] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        on_disconnect = scope["extensions"]["tilert_stream.on_disconnect"]
        told.append(on_disconnect(anyio.Event().set))
        received = 0
        while received < size:
            received += len((await receive())["body"])
        told.append(on_disconnect(anyio.Event().set))
        await send(START)
        await send({"type": "http.response.body"})

    async with serving(app) as running:
        client = await running.connect()
        head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size
        await client.send(head + b"x" * size)
        assert b" 200 " in await client.until(b"\r\n\r\n")
        assert told == [False, True]
