"""Time limits, on a clock that jumps: no test waits for one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import anyio
import pytest
import trio.testing

from tilert_stream.http import ServerSettings, WriteStalled

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from tests.http.conftest import Serving

HOUR = 3600.0
SETTINGS = ServerSettings(
    port=0,
    lifespan="off",
    header_timeout=HOUR,
    body_timeout=2 * HOUR,
    idle_timeout=4 * HOUR,
    write_stall_timeout=8 * HOUR,
    drain_timeout=16 * HOUR,
    linger_timeout=HOUR / 2,
)


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, object]]:
    # The threshold is real time: that much without any I/O, and the clock jumps.
    return "trio", {"clock": trio.testing.MockClock(autojump_threshold=0.05)}


async def test_idle_connection_is_closed_without_a_word(serving: Serving, echo: ASGIApp) -> None:
    async with serving(echo, SETTINGS, limit=None) as running:
        fresh, used = await running.connect(), await running.connect()
        await used.get()
        began = anyio.current_time()
        assert await fresh.rest() == b""
        assert await used.rest() == b""
        assert anyio.current_time() - began == pytest.approx(4 * HOUR, abs=10)


async def test_slow_headers_are_answered_408(serving: Serving, echo: ASGIApp) -> None:
    """The limit is for the whole head: a byte now and then does not stretch it."""
    async with serving(echo, SETTINGS, limit=None) as running:
        client = await running.connect()
        await client.send(b"GET / HT")
        began = anyio.current_time()
        await anyio.sleep(HOUR * 0.9)
        await client.send(b"TP/1.1\r\n")
        head, _, body = (await client.rest()).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
        assert json.loads(body)["error"]["code"] == "request_timeout"
        assert anyio.current_time() - began == pytest.approx(HOUR, abs=10)
        assert running.server.statistics().requests_total == 0


async def test_stalled_body_is_answered_408(serving: Serving, echo: ASGIApp) -> None:
    """The limit is for each pause: a slow body is no stalled one."""
    async with serving(echo, SETTINGS, limit=None) as running:
        client = await running.connect()
        await client.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n")
        for _ in range(2):
            await anyio.sleep(1.5 * HOUR)
            await client.send(b"a")
        began = anyio.current_time()
        assert (await client.rest()).startswith(b"HTTP/1.1 408 ")
        assert anyio.current_time() - began == pytest.approx(2 * HOUR, abs=10)


async def test_body_limit_starts_with_100_continue(serving: Serving, echo: ASGIApp) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await anyio.sleep(5 * HOUR)
        await echo(scope, receive, send)

    async with serving(app, SETTINGS, limit=None) as running:
        client = await running.connect()
        await client.send(
            b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n"
        )
        await client.until(b"100 \r\n\r\n")
        began = anyio.current_time()
        assert (await client.rest()).startswith(b"HTTP/1.1 408 ")
        assert anyio.current_time() - began == pytest.approx(2 * HOUR, abs=10)


async def test_client_that_takes_nothing_is_dropped(serving: Serving) -> None:
    """One stalled reader; the others are served meanwhile."""
    stalled: list[float] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        began = anyio.current_time()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        if scope["path"] == "/brief":
            await send({"type": "http.response.body", "body": b"brief"})
            return
        try:
            while True:
                await send({"type": "http.response.body", "body": bytes(65536), "more_body": True})
        except WriteStalled:
            stalled.append(anyio.current_time() - began)
            assert await receive() == {"type": "http.disconnect"}

    async with serving(app, SETTINGS, limit=None) as running:
        stuck = await running.connect(receive_buffer=4096)
        await stuck.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        other = await running.connect()
        await other.send(b"GET /brief HTTP/1.1\r\nHost: x\r\n\r\n")
        await other.until(b"brief\r\n0\r\n\r\n")
        assert stalled == []
        await anyio.sleep(9 * HOUR)
        assert stalled == [pytest.approx(8 * HOUR, abs=10)]
        assert running.server.statistics().gone_total == 1


async def test_reader_that_takes_a_little_is_kept(serving: Serving) -> None:
    size = 8_000_000

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-length", str(size).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": bytes(size)})

    async with serving(app, SETTINGS, limit=None) as running:
        client = await running.connect(receive_buffer=65536)
        await client.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        for _ in range(3):
            await anyio.sleep(6 * HOUR)
            for _ in range(40):
                client.buffer += await client.recv()
        assert len((await client.answer()).partition(b"\r\n\r\n")[2]) == size


async def test_answer_that_outlives_the_drain_is_cut(serving: Serving) -> None:
    cancelled: list[float] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"part", "more_body": True})
        try:
            await anyio.sleep_forever()
        finally:
            cancelled.append(anyio.current_time())

    async with serving(app, SETTINGS, limit=None) as running:
        client = await running.connect()
        await client.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await client.until(b"part\r\n")
        began = anyio.current_time()
        running.server.drain()
        assert await client.rest() == b""
        assert cancelled == [pytest.approx(began + 16 * HOUR, abs=10)]


async def test_drain_begins_after_its_delay(serving: Serving, echo: ASGIApp) -> None:
    settings = ServerSettings(port=0, lifespan="off", idle_timeout=None, drain_delay=HOUR)
    async with serving(echo, settings, limit=None) as running:
        client = await running.connect()
        await client.get()
        began = anyio.current_time()
        running.server.drain()
        assert await client.rest() == b""
        assert anyio.current_time() - began == pytest.approx(HOUR, abs=10)


async def test_empty_lines_keep_no_connection_open(serving: Serving, echo: ASGIApp) -> None:
    async with serving(echo, SETTINGS, limit=None) as running:
        client = await running.connect()
        began = anyio.current_time()
        for _ in range(3):
            await anyio.sleep(HOUR)
            await client.send(b"\r\n")
        assert await client.rest() == b""
        assert anyio.current_time() - began == pytest.approx(4 * HOUR, abs=10)


async def test_closing_connection_reads_on_for_a_while_only(
    serving: Serving, echo: ASGIApp
) -> None:
    async with serving(echo, SETTINGS, limit=None) as running:
        client = await running.connect()
        await client.send(b"nonsense\r\n\r\n")
        assert (await client.rest()).startswith(b"HTTP/1.1 400 ")
        assert running.server.connections == 1
        await anyio.sleep(0.6 * HOUR)
        assert running.server.connections == 0
