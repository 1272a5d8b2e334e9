"""Plain requests with plain answers make no parser; whatever else is among them, all are served."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import h11
import pytest

from tests.http.conftest import read_body
from tilert_stream.http import ServerSettings
from tilert_stream.http.errors import ASGIViolation

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from tests.http.conftest import Client, Serving


class Parsers:
    """How many have been made."""

    count = 0


@pytest.fixture
def parsers(monkeypatch: pytest.MonkeyPatch) -> Parsers:
    made = Parsers()

    class Counting(h11.Connection):
        def __init__(self, our_role: type[h11.SERVER], max_incomplete_event_size: int) -> None:
            made.count += 1
            super().__init__(our_role, max_incomplete_event_size)

    monkeypatch.setattr(h11, "Connection", Counting)
    return made


def answering(start: dict[str, object], *, streamed: bool) -> ASGIApp:
    """The method, the path and the body, after ``start``."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        said = b"%b %b " % (scope["method"].encode(), scope["raw_path"])
        said += await read_body(receive)
        headers = [] if streamed else [(b"content-length", str(len(said)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers, **start})
        await send({"type": "http.response.body", "body": said[:4], "more_body": True})
        await send({"type": "http.response.body", "body": said[4:]})

    return app


async def answer_to(client: Client, *, streamed: bool) -> bytes:
    """The body of the next answer; of one in chunks they are of the app's own two sizes."""
    if not streamed:
        return (await client.answer()).partition(b"\r\n\r\n")[2]
    head, _, _ = (await client.until(b"\r\n\r\n")).partition(b"\r\n\r\n")
    assert b"Transfer-Encoding: chunked" in head
    body = b""
    while size := int(await client.until(b"\r\n"), 16):
        body += (await client.until(b"\r\n"))[:size]
    await client.until(b"\r\n")
    return body


HEAD = b"POST /%d HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n"


@pytest.mark.parametrize("streamed", [False, True])
async def test_plain_requests(serving: Serving, parsers: Parsers, *, streamed: bool) -> None:
    """One after another, pipelined, behind empty lines; bodies whole, in pieces or apart."""
    async with serving(answering({}, streamed=streamed)) as running:
        client = await running.connect()
        await client.send(b"GET /0?a HTTP/1.1\r\nHost: x\r\nConnection: keep-alive\r\n\r\n")
        assert await answer_to(client, streamed=streamed) == b"GET /0 "
        await client.send(HEAD % 1 + b"body" + b"\r\n" + HEAD % 2 + b"body")
        for path in (b"/1", b"/2"):
            assert await answer_to(client, streamed=streamed) == b"POST " + path + b" body"
        for number, pieces in enumerate([(b"", b"body"), (b"b", b"od", b"y")]):
            first, *rest = pieces
            await client.send(HEAD % number + first)
            for piece in rest:
                await anyio.wait_all_tasks_blocked()
                await client.send(piece)
            assert await answer_to(client, streamed=streamed) == b"POST /%d body" % number
        await client.send(b"GET /5 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert await answer_to(client, streamed=streamed) == b"GET /5 "
        assert await client.rest() == b""
    assert parsers.count == 0


LONG = 300_000


async def test_a_long_plain_body(serving: Serving, echo: ASGIApp, parsers: Parsers) -> None:
    body = bytes(range(250)) * (LONG // 250)
    async with serving(echo) as running, anyio.create_task_group() as tasks:
        client = await running.connect()
        head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % LONG
        for _ in range(2):
            tasks.start_soon(client.send, head + body)
            assert (await client.answer()).endswith(b"\r\n\r\nPOST / " + body)
    assert parsers.count == 0


GET = b"GET / HTTP/1.1\r\nHost: x\r\n"


@pytest.mark.parametrize(
    ("request_bytes", "start"),
    [
        (b"GET / HTTP/1.0\r\nHost: x\r\n\r\n", {}),
        (b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n", {}),
        (GET + b"Upgrade: h2c\r\nConnection: upgrade\r\n\r\n", {}),
        (GET + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", {}),
        (GET + b"Expect: 100-continue\r\nContent-Length: 1\r\n\r\na", {}),
        (b"GET / HTTP/1.1\nHost: x\n\n", {}),
        (GET + b"\r\n", {"status": 204, "headers": []}),
        (GET + b"\r\n", {"headers": [(b"connection", b"close"), (b"content-length", b"6")]}),
        (GET + b"\r\n", {"headers": [(b"transfer-encoding", b"chunked")]}),
        (GET + b"\r\n", {"headers": [(b"x", b"caf\xe9")]}),
    ],
)
async def test_what_makes_a_parser(
    serving: Serving, parsers: Parsers, request_bytes: bytes, start: dict[str, object]
) -> None:
    async with serving(answering(start, streamed=False)) as running:
        client = await running.connect()
        await client.send(request_bytes)
        assert (await client.until(b"\r\n")).startswith(b"HTTP/1.1 2")
    assert parsers.count == 1


MIXED = [
    (b"POST /1 HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi", b"POST /1 hi"),
    (
        b"POST /2 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nyo\r\n0\r\n\r\n",
        b"POST /2 yo",
    ),
    (b"GET /3 HTTP/1.1\nHost: x\n\n", b"GET /3 "),
    (b"GET /4 HTTP/1.1\r\nHost: x\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n", b"GET /4 "),
    (b"GET /5 HTTP/1.1\r\nHost: x\r\n\r\n", b"GET /5 "),
    (b"PUT /6 HTTP/1.1\r\nHost: x\r\nX:\r\nX: \r\nContent-Length: 3\r\n\r\nabc", b"PUT /6 abc"),
]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("requests", [MIXED, MIXED[::-1]])
async def test_plain_and_others_on_one_connection(
    serving: Serving, requests: list[tuple[bytes, bytes]], *, streamed: bool
) -> None:
    """One at a time and pipelined, in one piece and cut anywhere."""
    together = b"".join(data for data, _ in requests)
    async with serving(answering({}, streamed=streamed)) as running:
        client = await running.connect()
        for data, expected in requests:
            await client.send(data)
            assert await answer_to(client, streamed=streamed) == expected
        for at in range(0, len(together), 5):
            await client.send(together[:at])
            for _ in range(5):
                await anyio.lowlevel.checkpoint()
            await client.send(together[at:])
            for _, expected in requests:
                assert await answer_to(client, streamed=streamed) == expected


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
@pytest.mark.parametrize("body", [b"much", b""])
async def test_a_wrong_length_stays_wrong(serving: Serving, version: bytes, body: bytes) -> None:
    """Whoever counts: an app that goes on after its mistake sends nothing more."""
    errors: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-length", b"1")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for content in (body, b"1"):
            try:
                await send({"type": "http.response.body", "body": content})
            except h11.LocalProtocolError as error:
                errors.append(str(error))

    async with serving(app) as running:
        client = await running.connect()
        await client.send(b"GET / HTTP/%b\r\nHost: x\r\n\r\n" % version)
        assert (await client.rest()).startswith(b"HTTP/1.1 500 ")
    assert len(errors) == 2
    assert errors[0] == f"Too {'much' if body else 'little'} data for declared Content-Length"


@pytest.mark.parametrize("status", [99, 100, 101, 199, 1000])
@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
async def test_no_body_follows_a_status_that_is_none(
    serving: Serving, version: bytes, status: int
) -> None:
    """Of an app that goes on after its mistake: chunks without a head would be the next answer."""
    errors: list[type[Exception]] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        messages: list[Message] = [
            {"type": "http.response.start", "status": status, "headers": []},
            {"type": "http.response.body", "body": b"hi", "more_body": True},
            {"type": "http.response.body"},
        ]
        for message in messages:
            try:
                await send(message)
            except (h11.LocalProtocolError, ASGIViolation) as error:
                errors.append(type(error))

    async with serving(app) as running:
        client = await running.connect()
        await client.send(b"GET / HTTP/%b\r\nHost: x\r\n\r\n" % version)
        assert (await client.until(b"\r\n")).startswith(b"HTTP/1.1 500 ")
        assert (await client.rest()).count(b"\r\n\r\n") == 1
    assert errors == [h11.LocalProtocolError, ASGIViolation, ASGIViolation]


@pytest.mark.parametrize(
    "rest", [b"Content-Length: 9\r\n\r\npart", b"Transfer-Encoding: chunked\r\n\r\n9\r\npart"]
)
async def test_a_last_request_that_is_cut_short(
    serving: Serving, echo: ASGIApp, rest: bytes
) -> None:
    """By a client that has ended its side, and still reads."""
    ended = anyio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await ended.wait()
        await echo(scope, receive, send)

    settings = ServerSettings(port=0, lifespan="off", allow_half_close=True)
    async with serving(app, settings) as running:
        client = await running.connect()
        await client.send(GET + b"\r\n" + GET + rest)
        client.end_output()
        for _ in range(10):
            await anyio.lowlevel.checkpoint()
        ended.set()
        assert (await client.answer()).endswith(b"\r\n\r\nGET / ")
        assert (await client.answer()).startswith(b"HTTP/1.1 400 ")
        assert await client.rest() == b""
