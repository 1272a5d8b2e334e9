"""One line a request."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING

import pytest

from tilert_stream.http import ServerSettings
from tilert_stream.http.access_log import AccessRecord
from tilert_stream.http.scope import NAME_REQUEST

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from tests.http.conftest import Serving


@pytest.fixture(autouse=True)
def _level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="tilert_stream.access")


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records if record.name.endswith("access")]
    changing = r"^127\.0\.0\.1:\d+ |\d+\.\d ms |(?<=refused )[0-9a-f]{32}"
    return [re.sub(changing, "", line) for line in found]


async def test_lines(serving: Serving, caplog: pytest.LogCaptureFixture) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        headers: list[tuple[bytes, bytes]] = []
        if scope["path"] == "/named":
            headers = [(b"X-Request-Id", b"ours")]
        await send({"type": "http.response.start", "status": 201, "headers": headers})
        await send({"type": "http.response.body", "body": b"12345", "more_body": True})
        if scope["path"] != "/cut":
            await send({"type": "http.response.body", "body": b"678"})

    async with serving(app) as running:
        client = await running.connect()
        for path, extra in ((b"/", b""), (b"/", b"X-Request-Id: theirs\r\n"), (b"/named", b"")):
            await client.send(b"GET %b HTTP/1.1\r\nHost: x\r\n%b\r\n" % (path, extra))
            await client.until(b"0\r\n\r\n")
        await client.send(b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n")
        await client.until(b"\r\n\r\n")
        await client.send(b"GET /cut HTTP/1.1\r\nHost: x\r\n\r\n")
        await client.rest()
        client = await running.connect()
        await client.send(b"nonsense\r\n\r\n")
        await client.rest()
        client.close()
        await running.no_connections()
    assert lines(caplog) == [
        '"GET / HTTP/1.1" 201 8 B complete -',
        '"GET / HTTP/1.1" 201 8 B complete theirs',
        '"GET /named HTTP/1.1" 201 8 B complete ours',
        '"HEAD / HTTP/1.1" 201 0 B complete -',
        '"GET /cut HTTP/1.1" 201 5 B cut -',
        '"-" 400 0 B refused ',
    ]


async def test_client_gone_before_the_head_is_499(
    serving: Serving, caplog: pytest.LogCaptureFixture
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    async with serving(app) as running:
        client = await running.connect()
        await client.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        client.close()
        await running.no_connections()
    assert lines(caplog) == ['"GET / HTTP/1.1" 499 0 B gone -']


async def test_answer_cut_by_the_server_says_so(
    serving: Serving, caplog: pytest.LogCaptureFixture
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"part", "more_body": True})
        while True:
            await receive()

    async with serving(app) as running:
        client = await running.connect()
        await client.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await client.until(b"part\r\n")
        running.server.cut()
        await client.rest()
    assert lines(caplog) == ['"GET / HTTP/1.1" 200 4 B cut -']


async def test_it_can_be_off(
    serving: Serving, echo: ASGIApp, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(echo, ServerSettings(port=0, lifespan="off", access_log=False)) as running:
        await (await running.connect()).get()
    assert lines(caplog) == []


async def test_control_characters_of_a_client_reach_no_terminal(
    serving: Serving, caplog: pytest.LogCaptureFixture
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body"})

    async with serving(app) as running:
        client = await running.connect()
        await client.send(b"GET / HTTP/1.0\r\nX-Request-Id: a\x1b[2J\x07\x9b\xe9\r\n\r\n")
        await client.rest()
        client.close()
        await running.no_connections()
    assert lines(caplog) == ['"GET / HTTP/1.0" 200 0 B complete a\\x1b[2J\\x07\\x9bé']


async def test_a_line_that_nobody_wants_is_not_made(
    serving: Serving,
    echo: ASGIApp,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.WARNING, logger="tilert_stream.access")
    monkeypatch.setattr(AccessRecord, "request", property(lambda _: pytest.fail("made")))
    async with serving(echo) as running:
        assert b"200 OK" in await (await running.connect()).get()
    assert lines(caplog) == []


async def test_the_answers_own_id_goes_before_the_apps(
    serving: Serving, caplog: pytest.LogCaptureFixture
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scope["extensions"][NAME_REQUEST]("named")
        headers = [(b"x-request-id", scope["path"][1:].encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body"})

    async with serving(app) as running:
        client = await running.connect()
        for path in ("/answered", "/"):
            await client.send(b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n" % path.encode())
            await client.until(b"0\r\n\r\n")
        client.close()
        await running.no_connections()
    assert [line.split()[-1] for line in lines(caplog)] == ["answered", "named"]
