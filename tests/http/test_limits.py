"""Requests that the server answers by itself: the app never sees them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import anyio
import pytest

from tilert_stream.errors import ConfigError
from tilert_stream.http import ServerSettings

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from tests.http.conftest import Serving

SMALL = ServerSettings(port=0, lifespan="off", max_header_bytes=1000, max_body_bytes=10)

REFUSED = [
    (b"nonsense\r\n\r\n", 400, "malformed_http"),
    (b"GET /\r\n\r\n", 400, "malformed_http"),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, "malformed_http"),
    (b"GET / HTTP/1.1\r\n\r\n", 400, "malformed_http"),
    (b"GET / HTTP/1.1\r\nHost: x\r\nbad header\r\n\r\n", 400, "malformed_http"),
    (b"GET no-slash HTTP/1.1\r\nHost: x\r\n\r\n", 400, "malformed_http"),
    (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", 400, "malformed_http"),
    (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1, 2\r\n\r\n", 400, "malformed_http"),
    (
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %b\r\n\r\n" % (b"9" * 800),
        400,
        "malformed_http",
    ),
    (
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n",
        400,
        "malformed_http",
    ),
    (
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        400,
        "malformed_http",
    ),
    (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n", 501, "not_implemented"),
    (b"CONNECT a:1 HTTP/1.1\r\nHost: x\r\n\r\n", 501, "not_implemented"),
    (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, "http_version_not_supported"),
    (b"GET / HTTP/0.9\r\n\r\n", 505, "http_version_not_supported"),
    (b"GET / HTTP/1.1\r\nHost: x\r\nA: %b\r\n\r\n" % (b"a" * 1000), 431, "headers_too_large"),
    (b"GET / HTTP/1.1\r\nHost: x\r\nA: %b" % (b"a" * 1000), 431, "headers_too_large"),
    (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 11\r\n\r\n", 413, "body_too_large"),
    (
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 11\r\nExpect: 100-continue\r\n\r\n",
        413,
        "body_too_large",
    ),
    (
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nb\r\nabcdefghijk\r\n",
        413,
        "body_too_large",
    ),
]


@pytest.mark.parametrize(("request_bytes", "status", "code"), REFUSED)
async def test_refused(serving: Serving, request_bytes: bytes, status: int, code: str) -> None:
    calls: list[Scope] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        calls.append(scope)

    async with serving(app, SMALL) as running:
        client = await running.connect()
        await client.send(request_bytes)
        head, _, body = (await client.rest()).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 %d " % status)
        assert b"\r\nconnection: close" in head.lower()
        error = json.loads(body)["error"]
        assert error.keys() == {"message", "type", "param", "code"}
        assert (error["type"], error["code"]) == ("invalid_request_error", code)
        client.close()
        await running.no_connections()
        assert running.server.statistics().refused_total == 1
    assert calls == []


async def test_refused_head_has_no_body(serving: Serving, echo: ASGIApp) -> None:
    async with serving(echo, SMALL) as running:
        client = await running.connect()
        await client.send(b"HEAD no-slash HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await client.rest()).endswith(b"\r\n\r\n")


async def test_a_broken_header_is_not_quoted(serving: Serving, echo: ASGIApp) -> None:
    async with serving(echo, SMALL) as running:
        client = await running.connect()
        await client.send(b"GET / HTTP/1.1\r\nHost: x\r\nAuthorization Bearer sk-secret\r\n\r\n")
        assert b"sk-secret" not in await client.rest()


async def test_chunked_body_over_the_limit_ends_the_app(serving: Serving) -> None:
    """The body is counted as it comes; the app, which waits for it, is cancelled."""
    asked = anyio.Event()
    ended = anyio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            asked.set()
            while True:
                await receive()
        finally:
            ended.set()

    async with serving(app, SMALL) as running:
        client = await running.connect()
        await client.send(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        await asked.wait()
        await client.send(b"6\r\nabcdef\r\n5\r\nghijk\r\n")
        assert (await client.until(b"\r\n")).startswith(b"HTTP/1.1 413 ")
        assert ended.is_set()
        client.end_output()
        await client.rest()


async def test_broken_chunk_after_the_head_is_a_cut(serving: Serving) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"part", "more_body": True})
        while True:
            await receive()

    async with serving(app) as running:
        client = await running.connect()
        await client.send(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        await client.until(b"part\r\n")
        await client.send(b"zz\r\n")
        assert await client.rest() == b""
        client.close()
        await running.no_connections()
        statistics = running.server.statistics()
        assert (statistics.cut_total, statistics.refused_total) == (1, 0)


@pytest.mark.parametrize(
    "rest",
    [
        b"Content-Length: 10\r\n\r\n0123456789",
        b"Transfer-Encoding: chunked\r\n\r\na\r\n0123456789\r\n0\r\n\r\n",
    ],
)
async def test_body_at_the_limit_is_served(serving: Serving, echo: ASGIApp, rest: bytes) -> None:
    async with serving(echo, SMALL) as running:
        client = await running.connect()
        await client.send(b"POST / HTTP/1.1\r\nHost: x\r\n" + rest)
        assert (await client.answer()).endswith(b"POST / 0123456789")


async def test_connection_limit(serving: Serving, echo: ASGIApp) -> None:
    """The next client is served when one has gone."""
    async with serving(echo, ServerSettings(port=0, lifespan="off", max_connections=1)) as running:
        first = await running.connect()
        await first.get()
        second = await running.connect()
        await second.send(b"GET /second HTTP/1.1\r\nHost: x\r\n\r\n")
        await first.get()
        assert running.server.connections == 1
        first.close()
        assert (await second.answer()).endswith(b"GET /second ")


def test_settings_name_what_is_wrong() -> None:
    with pytest.raises(ConfigError, match="port is 70000; it must be from 0 to 65535") as caught:
        ServerSettings(port=70000)
    assert caught.value.param == "port"
    with pytest.raises(ConfigError, match="backlog is 0; it must be 1 or more"):
        ServerSettings(backlog=0)
    with pytest.raises(ConfigError, match=r"idle_timeout is -1; it must be 0 or more"):
        ServerSettings(idle_timeout=-1)
