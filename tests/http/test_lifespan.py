"""The app's lifespan around the server's."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
import anyio.abc
import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from tilert_stream.http import BindFailed, Server, ServerSettings, StartupFailed, serve

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send

    from tests.http.conftest import Serving

AUTO = ServerSettings(port=0)


async def test_starlette_app_from_startup_to_shutdown(serving: Serving) -> None:
    events: list[str] = []

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[dict[str, str], None]:
        events.append("up")
        yield {"model": "loaded"}
        events.append("down")

    async def endpoint(request: Request) -> JSONResponse:
        events.append(request.state.model)
        return JSONResponse({"path": request.url.path})

    app = Starlette(routes=[Route("/", endpoint)], lifespan=lifespan)
    async with serving(app, AUTO) as running:
        assert events == ["up"]
        client = await running.connect()
        assert (await client.get()).endswith(b'{"path":"/"}')
    assert events == ["up", "loaded", "down"]


async def test_shutdown_comes_after_the_drain(serving: Serving) -> None:
    events: list[str] = []
    reached, opened = anyio.Event(), anyio.Event()

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[None, None]:
        yield
        events.append("down")

    async def endpoint(request: Request) -> JSONResponse:
        reached.set()
        await opened.wait()
        events.append("answered")
        return JSONResponse({})

    app = Starlette(routes=[Route("/", endpoint)], lifespan=lifespan)
    async with serving(app, AUTO) as running:
        client = await running.connect()
        await client.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await reached.wait()
        running.server.drain()
        opened.set()
        await client.answer()
    assert events == ["answered", "down"]


async def test_app_without_lifespan_is_served(serving: Serving, echo: ASGIApp) -> None:
    states: list[bool] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        states.append("state" in scope)
        await echo(scope, receive, send)

    async with serving(app, AUTO) as running:
        assert (await (await running.connect()).get()).endswith(b"GET / ")
    assert states == [False]


async def test_app_that_returns_from_lifespan_is_served(serving: Serving, echo: ASGIApp) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await echo(scope, receive, send)

    async with serving(app, AUTO) as running:
        assert (await (await running.connect()).get()).endswith(b"GET / ")


async def test_startup_failure_is_an_error_with_the_apps_message() -> None:
    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[None, None]:
        raise ValueError("no such model")
        yield

    server = Server(Starlette(lifespan=lifespan), AUTO)
    with pytest.raises(StartupFailed, match="no such model"):
        await server.serve()


async def test_required_lifespan_that_raises_is_an_error() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise ValueError("no such model")

    with pytest.raises(StartupFailed, match="no such model") as caught:
        await serve(app, ServerSettings(port=0, lifespan="on"))
    assert isinstance(caught.value.__cause__, ValueError)


async def test_required_lifespan_that_is_missing_is_an_error() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        return

    with pytest.raises(StartupFailed, match="it returned"):
        await serve(app, ServerSettings(port=0, lifespan="on"))


async def test_app_that_dies_ends_the_server_with_its_error() -> None:
    """An engine that is gone must end the process, not leave it answering errors."""
    die = anyio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await die.wait()
        raise ValueError("the engine died")

    server = Server(app, AUTO)
    with pytest.raises(ValueError, match="the engine died"):
        await _serve_until(server, die)


async def _serve_until(server: Server, event: anyio.Event) -> None:
    errors: list[ValueError] = []

    async def run(*, task_status: anyio.abc.TaskStatus[list[tuple[str, int | None]]]) -> None:
        try:
            await server.serve(task_status=task_status)
        except ValueError as error:
            errors.append(error)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            await group.start(run)
            event.set()
    raise errors[0]


async def test_failed_shutdown_is_logged(
    serving: Serving, caplog: pytest.LogCaptureFixture
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        assert (await receive())["type"] == "lifespan.startup"
        await send({"type": "lifespan.startup.complete"})
        assert (await receive())["type"] == "lifespan.shutdown"
        await send({"type": "lifespan.shutdown.failed", "message": "disk full"})

    async with serving(app, AUTO):
        pass
    ours = [record for record in caplog.records if record.name == "tilert_stream.http"]
    assert [record.getMessage() for record in ours] == ["The app failed to shut down: disk full"]


async def test_lifespan_is_shut_down_when_serve_is_cancelled() -> None:
    events: list[str] = []

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[None, None]:
        yield
        events.append("down")

    server = Server(Starlette(lifespan=lifespan), AUTO)
    async with anyio.create_task_group() as group:
        await group.start(server.serve)
        group.cancel_scope.cancel()
    assert events == ["down"]


async def test_app_is_shut_down_when_the_address_is_taken(serving: Serving) -> None:
    events: list[str] = []

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[None, None]:
        yield
        events.append("down")

    app = Starlette(lifespan=lifespan)
    async with serving(app, ServerSettings(port=0, lifespan="off")) as running:
        port = running.addresses[0][1]
        assert port is not None
        with pytest.raises(BindFailed, match=f"Cannot listen on 127.0.0.1:{port}"):
            await serve(app, ServerSettings(port=port))
    assert events == ["down"]
