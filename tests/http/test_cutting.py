"""Answers that fail: before the head a status, after it a cut that every client can see."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

import httpx2
import pytest

from tilert_stream.http import ServerSettings

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from tests.http.conftest import Serving

START: dict[str, object] = {"type": "http.response.start", "status": 200, "headers": []}
PART: dict[str, object] = {"type": "http.response.body", "body": b"part", "more_body": True}


async def raises_at_once(scope: Scope, receive: Receive, send: Send) -> None:
    raise RuntimeError("the app's secret")


async def raises_before_the_body(scope: Scope, receive: Receive, send: Send) -> None:
    await send(START)
    raise RuntimeError("the app's secret")


async def returns_at_once(scope: Scope, receive: Receive, send: Send) -> None:
    return


async def returns_before_the_body(scope: Scope, receive: Receive, send: Send) -> None:
    await send(START)


async def has_a_bad_header(scope: Scope, receive: Receive, send: Send) -> None:
    await send({**START, "headers": [(b"x", b"a\r\nb: c")]})


async def sends_too_much_at_once(scope: Scope, receive: Receive, send: Send) -> None:
    await send({**START, "headers": [(b"content-length", b"1")]})
    await send({"type": "http.response.body", "body": b"much"})


async def sends_nonsense(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "websocket.accept"})


async def sends_a_body_first(scope: Scope, receive: Receive, send: Send) -> None:
    await send(PART)


async def starts_twice(scope: Scope, receive: Receive, send: Send) -> None:
    await send(START)
    await send(START)


async def raises_after_the_head(scope: Scope, receive: Receive, send: Send) -> None:
    await send(START)
    await send(PART)
    raise RuntimeError("the app's secret")


async def returns_after_the_head(scope: Scope, receive: Receive, send: Send) -> None:
    await send(START)
    await send(PART)


async def falls_short_of_its_length(scope: Scope, receive: Receive, send: Send) -> None:
    await send({**START, "headers": [(b"content-length", b"9")]})
    await send(PART)


async def ends_short_of_its_length(scope: Scope, receive: Receive, send: Send) -> None:
    await send({**START, "headers": [(b"content-length", b"9")]})
    await send({"type": "http.response.body", "body": b"part"})


BEFORE = [
    raises_at_once,
    raises_before_the_body,
    returns_at_once,
    returns_before_the_body,
    has_a_bad_header,
    sends_too_much_at_once,
    ends_short_of_its_length,
    sends_nonsense,
    sends_a_body_first,
    starts_twice,
]
AFTER = [raises_after_the_head, returns_after_the_head, falls_short_of_its_length]


@pytest.mark.parametrize("app", BEFORE)
async def test_failure_before_the_head_is_a_500(
    serving: Serving, app: ASGIApp, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(app) as running:
        client = await running.connect()
        await client.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        head, _, body = (await client.rest()).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 500 Internal Server Error\r\n")
        assert b"\r\nconnection: close" in head.lower()
        assert json.loads(body) == {
            "error": {
                "message": "The server failed to answer; its log has the reason.",
                "type": "server_error",
                "param": None,
                "code": "internal_error",
            }
        }
        await running.no_connections()
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert (record.exc_info is None) == app.__name__.startswith("returns")


@pytest.mark.parametrize("app", AFTER)
@pytest.mark.parametrize("version", ["1.0", "1.1"])
async def test_failure_after_the_head_is_a_cut(
    serving: Serving, app: ASGIApp, version: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What was sent arrives; the end does not look like one."""
    async with serving(app) as running:
        client = await running.connect()
        await client.send(b"GET / HTTP/%b\r\nHost: x\r\n\r\n" % version.encode())
        head = await client.until(b"\r\n\r\n")
        await client.until(b"part")
        if version == "1.0" and b"content-length" not in head.lower():
            with pytest.raises(ConnectionResetError):
                await client.rest()
        else:
            assert await client.rest() in (b"\r\n", b"")
        await running.no_connections()
        assert running.server.statistics().cut_total == 1
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert bool(errors) == app.__name__.startswith("raises")


@pytest.mark.parametrize("app", AFTER)
async def test_cut_is_an_error_to_httpx(serving: Serving, app: ASGIApp) -> None:
    async with serving(app) as running:
        transport = httpx2.AsyncHTTPTransport()
        async with httpx2.AsyncClient(transport=transport, trust_env=False) as client:
            with pytest.raises(httpx2.RemoteProtocolError):
                await client.get(running.url)


async def test_cut_waits_until_an_old_client_has_read(serving: Serving) -> None:
    """A reset overtakes nothing: the client reads slowly, and still gets every byte."""
    size = 3_000_000

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(START)
        await send({"type": "http.response.body", "body": bytes(size), "more_body": True})

    settings = ServerSettings(port=0, lifespan="off", linger_timeout=60)
    async with serving(app, settings) as running:
        client = await running.connect()
        await client.send(b"GET / HTTP/1.0\r\n\r\n")
        await client.until(b"\r\n\r\n")
        read = len(client.buffer)
        client.buffer = b""
        ended = ""
        while not ended:
            try:
                read += len(await client.recv())
            except ConnectionResetError:
                ended = "reset"
        assert read == size


async def test_app_may_not_send_after_its_end(serving: Serving) -> None:
    errors: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(START)
        await send({"type": "http.response.body", "body": b"all"})
        assert await receive() == {"type": "http.disconnect"}
        try:
            await send(PART)
        except RuntimeError as error:
            errors.append(str(error))

    async with serving(app) as running:
        client = await running.connect()
        await client.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await client.until(b"0\r\n\r\n")
        await client.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await client.until(b"0\r\n\r\n")
    assert errors == ["'http.response.body' was sent after the end of the answer."] * 2


async def test_failure_after_the_answer_ends_the_connection_only(
    serving: Serving, caplog: pytest.LogCaptureFixture
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(START)
        await send({"type": "http.response.body", "body": b"all"})
        raise RuntimeError("in a background task")

    async with serving(app) as running:
        for _ in range(2):
            client = await running.connect()
            await client.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await client.rest()).endswith(b"3\r\nall\r\n0\r\n\r\n")
        await running.no_connections()
        assert running.server.statistics().cut_total == 0
    assert len([record for record in caplog.records if record.exc_info]) == 2
