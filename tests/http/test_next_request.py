"""The next request on a connection, sent while the app is not yet back from the last one."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import anyio
import pytest

from tilert_stream.http import ServerSettings
from tilert_stream.http.readiness import Readiness

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from tests.http.conftest import Serving

SETTINGS = ServerSettings(port=0, lifespan="off", max_pipelined_bytes=100)


@pytest.mark.parametrize("size", [101, 64 * 1024, 300_000])
async def test_a_long_body_behind_a_complete_answer(
    serving: Serving, echo: ASGIApp, size: int
) -> None:
    """An app that still tidies up has answered: its client's next request is none too early."""
    tidied_up = anyio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await echo(scope, receive, send)
        if scope["path"] == "/first":
            await tidied_up.wait()

    body = b"x" * size
    async with serving(app, SETTINGS) as running, anyio.create_task_group() as tasks:
        client = await running.connect()
        await client.get("/first")
        head = b"POST /next HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size
        tasks.start_soon(client.send, head + body)
        await anyio.wait_all_tasks_blocked()
        tidied_up.set()
        assert (await client.answer()).endswith(b"\r\n\r\nPOST /next " + body)
        assert running.server.statistics().accepted_total == 1


async def test_what_has_come_for_others_passes_a_request_that_is_taken_at_once(
    serving: Serving, echo: ASGIApp
) -> None:
    tidied_up = anyio.Event()
    near, far = socket.socketpair()
    read: list[bytes] = []
    read_before: list[bytes] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/next":
            read_before.extend(read)
        await echo(scope, receive, send)
        if scope["path"] == "/first":
            await tidied_up.wait()
            far.send(b"token")

    with near, far:
        near.settimeout(0)
        far.settimeout(0)
        token = Readiness(near, lambda: read.append(near.recv(9)))
        token.start()
        async with serving(app, SETTINGS) as running:
            client = await running.connect()
            await client.get("/first")
            await client.send(b"GET /next HTTP/1.1\r\nHost: x\r\n\r\n")
            await anyio.wait_all_tasks_blocked()
            tidied_up.set()
            await client.answer()
            assert read_before == [b"token"]
        token.stop()
