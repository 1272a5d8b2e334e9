"""Requests and answers over one connection: framing, keep-alive, pipelining."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import pytest

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from tests.http.conftest import Serving

CHUNKS = [b'data: {"a":"\\n"}\n\n', b'data: {"b":"\\r\\n"}\n\n', b"data: [DONE]\n\n"]
BODY = b"".join(CHUNKS)
CHUNKED = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in CHUNKS) + b"0\r\n\r\n"


async def stream(scope: Scope, receive: Receive, send: Send) -> None:
    """Three events, without a Content-Length."""
    headers = [(b"content-type", b"text/event-stream")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for chunk in CHUNKS:
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body"})


async def test_keep_alive(serving: Serving, echo: ASGIApp) -> None:
    async with serving(echo) as running:
        client = await running.connect()
        for path in (b"/a", b"/b", b"/c"):
            assert (await client.get(path.decode())).endswith(b"\r\n\r\nGET %b " % path)
        statistics = running.server.statistics()
        assert (statistics.accepted_total, statistics.requests_total) == (1, 3)


async def test_connection_close_is_honoured(serving: Serving, echo: ASGIApp) -> None:
    async with serving(echo) as running:
        client = await running.connect()
        await client.send(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        answer = await client.rest()
        assert b"\r\nconnection: close\r\n" in answer.lower()
        assert answer.endswith(b"\r\n\r\nGET / ")


async def test_app_may_close(serving: Serving) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"connection", b"close"), (b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok"})

    async with serving(app) as running:
        client = await running.connect()
        await client.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await client.rest()).endswith(b"\r\n\r\nok")


async def test_http_11_framing_byte_exact(serving: Serving) -> None:
    async with serving(stream) as running:
        client = await running.connect()
        for _ in range(2):
            await client.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            head = await client.until(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 OK\r\n")
            assert b"\r\ntransfer-encoding: chunked\r\n" in head.lower()
            assert await client.until(b"0\r\n\r\n") == CHUNKED


@pytest.mark.parametrize("end", [b"", b"Connection: close\r\n"])
async def test_http_03_old_clients_read_to_eof(serving: Serving, end: bytes) -> None:
    async with serving(stream) as running:
        client = await running.connect()
        await client.send(b"POST / HTTP/1.0\r\nContent-Length: 2\r\n%b\r\nhi" % end)
        head, _, body = (await client.rest()).partition(b"\r\n\r\n")
        assert b"chunked" not in head
        assert b"\r\nconnection: close" in head.lower()
        assert body == BODY


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
async def test_dis_11_eof_right_after_the_body(serving: Serving, version: bytes) -> None:
    """The app goes on after its answer; the client does not have to wait for that."""
    at_rest = anyio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await stream(scope, receive, send)
        await at_rest.wait()

    async with serving(app) as running:
        client = await running.connect()
        await client.send(b"GET / HTTP/%b\r\nHost: x\r\nConnection: close\r\n\r\n" % version)
        body = (await client.rest()).partition(b"\r\n\r\n")[2]
        assert body == (BODY if version == b"1.0" else CHUNKED)
        assert running.server.statistics().requests == 1
        at_rest.set()


async def test_http_01_one_write_an_event(serving: Serving) -> None:
    """The head comes with the first event, in one segment; each event is whole when it comes."""
    give, take = anyio.create_memory_object_stream[bytes](0)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"x-accel-buffering", b"no"), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async for chunk in take:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body"})

    with take:
        async with serving(app) as running:
            client = await running.connect()
            await client.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            with give:
                for number, chunk in enumerate(CHUNKS):
                    await give.send(chunk)
                    data = await client.recv()
                    if number == 0:
                        head, _, data = data.partition(b"\r\n\r\n")
                        assert b"x-accel-buffering: no" in head.lower()
                        assert b"cache-control: no-cache" in head.lower()
                    assert data == b"%x\r\n%b\r\n" % (len(chunk), chunk)
            assert await client.recv() == b"0\r\n\r\n"


async def test_head_is_withheld_until_the_body(serving: Serving) -> None:
    """Until then a failure can still be a status."""
    started, proceed = anyio.Event(), anyio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        started.set()
        await proceed.wait()
        await send({"type": "http.response.body", "body": b"", "more_body": True})
        await send({"type": "http.response.body"})

    async with serving(app) as running:
        client = await running.connect()
        await client.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await started.wait()
        with pytest.raises(BlockingIOError):
            client.sock.recv(1)
        proceed.set()
        assert (await client.until(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 OK\r\n")
        assert await client.until(b"\r\n\r\n") == b"0\r\n\r\n"


async def test_pipelined_requests_are_answered_in_order(serving: Serving, echo: ASGIApp) -> None:
    async with serving(echo) as running:
        client = await running.connect()
        await client.send(
            b"GET /1 HTTP/1.1\r\nHost: x\r\n\r\n"
            b"POST /2 HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi"
            b"GET /3 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        )
        bodies = [(await client.answer()).partition(b"\r\n\r\n")[2] for _ in range(3)]
        assert bodies == [b"GET /1 ", b"POST /2 hi", b"GET /3 "]
        assert await client.rest() == b""


async def test_one_byte_at_a_time(serving: Serving, echo: ASGIApp) -> None:
    request = (
        b"POST /slow HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    )
    async with serving(echo) as running:
        client = await running.connect()
        for index in range(len(request)):
            await client.send(request[index : index + 1])
            for _ in range(3):
                await anyio.lowlevel.checkpoint()
        assert (await client.answer()).endswith(b"\r\n\r\nPOST /slow abcde")


async def test_head_has_the_headers_and_no_body(serving: Serving) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-length", b"5")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"hello"})

    async with serving(app) as running:
        client = await running.connect()
        for _ in range(2):
            await client.send(b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n")
            head = await client.until(b"\r\n\r\n")
            assert b"\r\ncontent-length: 5\r\n" in head.lower()
            await anyio.wait_all_tasks_blocked()
            assert client.buffer == b""


@pytest.mark.parametrize("status", [204, 304])
async def test_statuses_without_body(serving: Serving, status: int) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async with serving(app) as running:
        client = await running.connect()
        for _ in range(2):
            await client.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            head = await client.until(b"\r\n\r\n")
            assert b"chunked" not in head
            assert client.buffer == b""


async def test_expect_100_continue(serving: Serving, echo: ASGIApp) -> None:
    async with serving(echo) as running:
        client = await running.connect()
        await client.send(
            b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n"
        )
        assert await client.until(b"\r\n\r\n") == b"HTTP/1.1 100 \r\n\r\n"
        await client.send(b"hi")
        assert (await client.answer()).endswith(b"POST / hi")


async def test_no_100_continue_before_an_answer(serving: Serving) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 401, "headers": headers})
        await send({"type": "http.response.body"})

    async with serving(app) as running:
        client = await running.connect()
        await client.send(
            b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n"
        )
        head = await client.until(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 401 Unauthorized\r\n")
        assert b"\r\nconnection: close" in head.lower()
        client.end_output()
        assert await client.rest() == b""


async def test_upgrade_is_answered_as_plain_http(serving: Serving, echo: ASGIApp) -> None:
    async with serving(echo) as running:
        client = await running.connect()
        await client.send(
            b"GET /ws HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
        )
        assert (await client.answer()).endswith(b"GET /ws ")
        assert (await client.get("/next")).endswith(b"GET /next ")


async def test_scope(serving: Serving, echo: ASGIApp) -> None:
    seen: list[Scope] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope)
        await echo(scope, receive, send)

    async with serving(app) as running:
        client = await running.connect()
        await client.send(b"GET http://a.b/%C3%A9%2F?q=%20 HTTP/1.1\r\nHost: x\r\nX-A: B\r\n\r\n")
        await client.answer()
        (scope,) = seen
        assert scope["type"] == "http"
        assert (scope["path"], scope["raw_path"]) == ("/é/", b"/%C3%A9%2F")
        assert scope["query_string"] == b"q=%20"
        assert scope["headers"] == [(b"host", b"x"), (b"x-a", b"B")]
        assert scope["server"] == running.addresses[0]
        assert scope["client"] == client.sock.getsockname()
        assert scope["http_version"] == "1.1"


async def test_body_left_unread_closes_after_the_answer(serving: Serving) -> None:
    """The answer is complete although the client still sends."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok"})

    async with serving(app) as running:
        client = await running.connect()
        await client.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 500000\r\n\r\n")
        await client.send(b"x" * 400_000)
        answer = await client.until(b"ok")
        assert b"\r\nconnection: close\r\n" in answer.lower()
        await client.send(b"x" * 100_000)
        client.end_output()
        assert await client.rest() == b""


async def test_unread_small_body_keeps_the_connection(serving: Serving) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok"})

    async with serving(app) as running:
        client = await running.connect()
        for _ in range(2):
            await client.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody")
            assert (await client.answer()).endswith(b"\r\n\r\nok")


async def test_large_body_reaches_an_app_that_reads_slowly(serving: Serving) -> None:
    """Read ahead is bounded; what is not read yet stays in the kernel."""
    sizes: list[int] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        more = True
        while more:
            await anyio.wait_all_tasks_blocked()
            message = await receive()
            sizes.append(len(message["body"]))
            more = message["more_body"]
        headers = [(b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body"})

    async with serving(app) as running:
        client = await running.connect()
        await client.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3000000\r\n\r\n")
        await client.send(b"x" * 3_000_000)
        await client.answer()
        assert sum(sizes) == 3_000_000
        assert max(sizes) <= 2 * 65536


async def test_a_stream_with_its_body_left_unread_closes(serving: Serving) -> None:
    async with serving(stream) as running:
        client = await running.connect()
        await client.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 500000\r\n\r\n")
        await client.send(b"x" * 400_000)
        head = await client.until(b"\r\n\r\n")
        assert b"\r\nconnection: close\r\n" in head.lower()
        assert await client.until(b"0\r\n\r\n") == CHUNKED
        await client.send(b"x" * 100_000)
        client.end_output()
        assert await client.rest() == b""


@pytest.mark.parametrize("fate", [b"close", b"Close", b"keep-alive\r\nConnection: close"])
async def test_nothing_follows_a_stream_that_ends_its_connection(
    serving: Serving, fate: bytes
) -> None:
    async with serving(stream) as running:
        client = await running.connect()
        await client.send(
            b"GET /1 HTTP/1.1\r\nHost: x\r\nConnection: %b\r\n\r\n" % fate
            + b"GET /2 HTTP/1.1\r\nHost: x\r\n\r\n"
        )
        head, _, body = (await client.rest()).partition(b"\r\n\r\n")
        assert head.lower().count(b"\r\nconnection: close") == 1
        assert body == CHUNKED
        client.close()
        await running.no_connections()
        assert running.server.statistics().requests_total == 1
