"""The server's own answers carry an id, which one log line has with the reason."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING

import pytest
import trio.testing

from tests.http.test_limits import REFUSED, SMALL
from tilert_stream.http import ServerSettings

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from tests.http.conftest import Client, Serving

ID = re.compile(rb"\r\nx-request-id: ([^\r]*)\r\n")


@pytest.fixture(autouse=True)
def _level(caplog: pytest.LogCaptureFixture) -> None:  # pyright: ignore[reportUnusedFunction] -- used by pytest
    caplog.set_level(logging.INFO, logger="tilert_stream")


async def id_of(client: Client, status: int) -> str:
    """The one id of the answer."""
    head = (await client.rest()).partition(b"\r\n\r\n")[0] + b"\r\n"
    assert head.startswith(b"HTTP/1.1 %d " % status)
    (found,) = ID.findall(head)
    return bytes(found).decode()


def lines_with(caplog: pytest.LogCaptureFixture, request_id: str) -> list[tuple[str, str]]:
    return [
        (record.name, record.getMessage())
        for record in caplog.records
        if request_id in record.getMessage()
    ]


@pytest.mark.parametrize(("request_bytes", "status", "code"), REFUSED)
async def test_a_refusal_has_a_fresh_id(
    serving: Serving,
    echo: ASGIApp,
    caplog: pytest.LogCaptureFixture,
    request_bytes: bytes,
    status: int,
    code: str,
) -> None:
    async with serving(echo, SMALL) as running:
        ids: list[str] = []
        for _ in range(2):
            client = await running.connect()
            await client.send(request_bytes)
            ids.append(await id_of(client, status))
            client.close()
        await running.no_connections()
    assert all(re.fullmatch("[0-9a-f]{32}", each) for each in ids)
    assert ids[0] != ids[1]
    for each in ids:
        (reason, access) = lines_with(caplog, each)
        assert reason[0] == "tilert_stream.http"
        assert f": {status} " in reason[1]
        assert access[0] == "tilert_stream.access"


async def test_the_clients_own_id_is_not_repeated(
    serving: Serving, echo: ASGIApp, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(echo, SMALL) as running:
        client = await running.connect()
        await client.send(
            b"POST / HTTP/1.1\r\nHost: x\r\nX-Request-Id: theirs\r\nContent-Length: 11\r\n\r\n"
        )
        assert re.fullmatch("[0-9a-f]{32}", await id_of(client, 413))
        client.close()
        await running.no_connections()
    assert lines_with(caplog, "theirs") == []


@pytest.mark.parametrize(("name", "kept"), [("ours-7", True), ("a\r\nb: c", False), ("", False)])
async def test_what_the_app_calls_the_request_is_kept_where_it_can_be_sent(
    serving: Serving, name: str, kept: bool
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scope["extensions"]["tilert_stream.name_request"](name)

    async with serving(app) as running:
        client = await running.connect()
        await client.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        given = await id_of(client, 500)
        assert (given == name) is kept
        assert re.fullmatch("ours-7|[0-9a-f]{32}", given)


@pytest.mark.parametrize(
    "anyio_backend",
    [("trio", {"clock": trio.testing.MockClock(autojump_threshold=0.01)})],
    ids=["trio, jumping"],
)
async def test_a_time_limit_has_one_too(
    serving: Serving, echo: ASGIApp, caplog: pytest.LogCaptureFixture
) -> None:
    settings = ServerSettings(port=0, lifespan="off", header_timeout=60, linger_timeout=1)
    async with serving(echo, settings, limit=None) as running:
        client = await running.connect()
        await client.send(b"GET / HT")
        request_id = await id_of(client, 408)
    assert len(lines_with(caplog, request_id)) == 2


async def test_an_app_that_gives_no_answer(
    serving: Serving, caplog: pytest.LogCaptureFixture
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        """Returns without a word."""

    async with serving(app) as running:
        client = await running.connect()
        await client.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        request_id = await id_of(client, 500)
    assert any("500" in line for _, line in lines_with(caplog, request_id))
