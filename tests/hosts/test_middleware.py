"""Middleware of the app that the library is mounted in: what it must not do, and what it does."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import pytest
from litestar import Litestar, asgi
from litestar.config.compression import CompressionConfig
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount
from starlette.types import ASGIApp

from tests.hosts.answers import read
from tests.hosts.faults import Fault, Turnstile
from tests.hosts.servers import HOSTS
from tests.hosts.sites import Site
from tests.leaving import app_that_stands_in
from tilert_stream.asgi import App
from tilert_stream.testing.apps import ScriptedApp

SITES = [Site(host) for host in HOSTS if host.name in ("uvicorn-h11", "hypercorn-trio", "granian")]


@pytest.fixture(params=SITES, ids=lambda site: site.name)
def site(request: pytest.FixtureRequest) -> Site:
    """One server of each kind: middleware is above them."""
    chosen: Site = request.param
    return chosen


class Based(BaseHTTPMiddleware):
    """What ``@app.middleware("http")`` makes, too."""

    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        return await call_next(request)


def in_starlette(llm: App, *middleware: Middleware) -> ASGIApp:
    @asynccontextmanager
    async def lifespan(_host: Starlette) -> AsyncGenerator[None]:
        async with llm.lifespan():
            yield

    return Starlette(routes=[Mount("/llm", app=llm)], lifespan=lifespan, middleware=middleware)


def in_litestar(llm: App, compression: CompressionConfig) -> ASGIApp:
    @asynccontextmanager
    async def lifespan(_host: Litestar) -> AsyncGenerator[None]:
        async with llm.lifespan():
            yield

    @asgi("/llm", is_mount=True, copy_scope=True)
    async def mounted(scope: Any, receive: Any, send: Any) -> None:
        scope["path"] = scope["path"].rstrip("/")
        await llm(scope, receive, send)

    host: Any = Litestar(
        [mounted], lifespan=[lifespan], compression_config=compression, logging_config=None
    )
    made: ASGIApp = host
    return made


TAKES_GZIP: dict[str, Any] = {"headers": ("connection: close", "accept-encoding: gzip, br")}


def in_compressing_starlette(llm: App) -> ASGIApp:
    return in_starlette(llm, Middleware(GZipMiddleware, minimum_size=1))


def in_litestar_that_leaves_it_out(llm: App) -> ASGIApp:
    return in_litestar(llm, CompressionConfig("gzip", minimum_size=1, exclude="^/llm"))


@pytest.mark.parametrize(
    "place",
    [in_compressing_starlette, in_litestar_that_leaves_it_out],
    ids=["starlette", "litestar"],
)
async def test_http_02_a_stream_is_not_compressed(
    site: Site, place: Callable[[App], ASGIApp]
) -> None:
    turnstile = Turnstile(3)
    app = ScriptedApp(turnstile.script)
    async with site.serve(app, place(app)) as address:
        with turnstile:
            client = address.post(stream=True, max_tokens=4, **TAKES_GZIP)
            raw = b""
            for gate, letter in zip(turnstile.gates, "the", strict=True):
                await gate.arrival()
                raw += await client.until(f'"text":"{letter}"'.encode())
                gate.open()
            streamed = read(raw + await client.read_all())
    assert b"content-encoding" not in streamed.headers
    assert streamed.text == "the "


async def encoding_of(place: ASGIApp, app: App, site: Site, *, stream: bool) -> bytes | None:
    async with site.serve(app, place) as address:
        raw = await address.post(stream=stream, max_tokens=4, **TAKES_GZIP).read_all()
    answer = read(raw)
    assert answer.status == 200
    return answer.headers.get(b"content-encoding")


async def test_http_02_what_compresses_if_it_is_not_told(site: Site) -> None:
    app = ScriptedApp()
    starlette = in_compressing_starlette(app)
    assert await encoding_of(starlette, app, site, stream=False) == b"gzip"
    litestar = in_litestar(app, CompressionConfig("gzip", minimum_size=1))
    assert await encoding_of(litestar, app, site, stream=True) == b"gzip"


async def test_dis_07_based_middleware_passes_the_leaving_on(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """But the server logs a traceback for each client that leaves before its first byte."""
    gates = ExitStack()
    place, app = app_that_stands_in("prefilling", gates)
    async with site.serve(app, in_starlette(app, Middleware(Based))) as address:
        with gates:
            for number, stream in enumerate((True, False)):
                place.close()
                client = address.post(stream=stream)
                await place.arrival()
                client.leave()
                await address.door.until_left(number + 1)
                assert app.service.ledger.counts == {}
                place.open()
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(errors) == 2
    assert all("No response returned" in logging.Formatter().format(error) for error in errors)


async def test_dis_07_based_middleware_turns_a_cut_into_an_end(site: Site) -> None:
    gates = ExitStack()
    fault = Fault(2, gates)
    app = ScriptedApp(fault.script)
    async with site.serve(app, in_starlette(app, Middleware(Based))) as address:
        with gates:
            client = address.post(stream=True)
            begun = await client.until(b'"text":"t"')
            fault.strike()
            answer = read(begun + await client.read_all())
    assert b'"code":"engine_fault"' in answer.events[-1]
    assert answer.complete, "the failure looks like a success"
