"""Answers that are not as they should be, from a peer whose every byte is the test's own."""

from __future__ import annotations

import socket

import anyio
import pytest

from tests.http.client.conftest import OK, answers, scripted
from tests.http.conftest import Client
from tilert_stream.http.client import (
    ConnectFailed,
    HTTPClient,
    Origin,
    UpstreamClosed,
    UpstreamError,
    UpstreamInvalid,
    UpstreamTimeout,
)


async def ask(client: HTTPClient, origin: Origin, *, limit: int = 1000) -> tuple[int, bytes]:
    async with client.request(origin, "GET", "/") as response:
        return response.status, await response.read(limit)


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("answer", "status", "body", "kept"),
    [
        pytest.param(OK, 200, b"ok", True, id="length"),
        pytest.param(CHUNKED + b"2\r\nok\r\n0\r\n\r\n", 200, b"ok", True, id="chunked"),
        pytest.param(b"HTTP/1.1 100 Continue\r\n\r\n" + OK, 200, b"ok", True, id="continue"),
        pytest.param(
            b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" * 3 + OK, 200, b"ok", True, id="hints"
        ),
        pytest.param(b"HTTP/1.1 204 No Content\r\n\r\n", 204, b"", True, id="204"),
        pytest.param(b"HTTP/1.1 304 Not\r\nContent-Length: 5\r\n\r\n", 304, b"", True, id="304"),
        pytest.param(b"HTTP/1.1 599 \r\nContent-Length: 0\r\n\r\n", 599, b"", True, id="599"),
        pytest.param(OK + b"more", 200, b"ok", False, id="more than the body"),
        pytest.param(
            CHUNKED + b"2\r\nok\r\n0\r\n\r\n" + OK, 200, b"ok", False, id="an answer unasked"
        ),
        pytest.param(b"HTTP/1.1 204 No\r\n\r\nmore", 204, b"", False, id="more than no body"),
        pytest.param(b"HTTP/1.1 200 OK\r\n\r\nok", 200, b"ok", False, id="close-delimited"),
        pytest.param(
            b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", 200, b"ok", False, id="HTTP/1.0"
        ),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nConnection: Close\r\nContent-Length: 2\r\n\r\nok",
            200,
            b"ok",
            False,
            id="connection: close",
        ),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"2\r\nok\r\n0\r\n\r\n",
            200,
            b"ok",
            False,
            id="two framings",
        ),
    ],
)
async def test_an_answer(
    client: HTTPClient, answer: bytes, status: int, body: bytes, kept: bool
) -> None:
    async with scripted(answers(answer)) as peer:
        assert await ask(client, peer.origin) == (status, body)
        assert client.statistics().idle == kept


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        pytest.param(b"", UpstreamClosed, "the peer closed the connection before", id="nothing"),
        pytest.param(b"HTTP/1.1 20", UpstreamClosed, "before it had answered", id="half a head"),
        pytest.param(b"\x16\x03\x01 hello\r\n\r\n", UpstreamInvalid, "in HTTP/1.1", id="garbage"),
        pytest.param(b"SSH-2.0-x\r\n\r\n", UpstreamInvalid, "in HTTP/1.1", id="another protocol"),
        pytest.param(b"HTTP/2 200\r\n\r\n", UpstreamInvalid, "in HTTP/1.1", id="HTTP/2"),
        pytest.param(
            b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n", UpstreamInvalid, "HTTP/1.1", id="101"
        ),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx",
            UpstreamInvalid,
            "in HTTP/1.1",
            id="two lengths",
        ),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
            UpstreamInvalid,
            "in HTTP/1.1",
            id="a length beyond all measure",
        ),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
            UpstreamInvalid,
            "in HTTP/1.1",
            id="unknown coding",
        ),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000, UpstreamInvalid, "HTTP/1.1", id="huge head"
        ),
        pytest.param(
            b"HTTP/1.1 100 Continue\r\n\r\n" * 20, UpstreamInvalid, "16 interim", id="interim flood"
        ),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok",
            UpstreamClosed,
            "in the middle of its answer",
            id="short length",
        ),
        pytest.param(
            CHUNKED + b"2\r\nok\r\n", UpstreamClosed, "in the middle of its answer", id="no end"
        ),
        pytest.param(
            CHUNKED + b"5\r\nok", UpstreamClosed, "in the middle of its answer", id="half a chunk"
        ),
        pytest.param(
            CHUNKED + b"zz\r\nok", UpstreamInvalid, "the answer of the peer is broken", id="no size"
        ),
        pytest.param(
            CHUNKED + b"2\r\nokay",
            UpstreamInvalid,
            "the answer of the peer is broken",
            id="no CRLF",
        ),
        pytest.param(
            b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 1001, UpstreamInvalid, "over 1000 bytes", id="long"
        ),
    ],
)
async def test_an_answer_that_is_none(
    client: HTTPClient, answer: bytes, error: type[UpstreamError], message: str
) -> None:
    async with scripted(answers(answer)) as peer:
        with pytest.raises(error, match=message) as caught:
            await ask(client, peer.origin)
        assert caught.value.status == 502
        assert "127.0.0.1" not in caught.value.message, "clients read the label, not the address"
        assert client.statistics().idle == 0


async def test_a_reset(client: HTTPClient) -> None:
    async def script(connection: Client) -> None:
        await connection.until(b"\r\n\r\n")
        connection.reset()

    async with scripted(script) as peer:
        with pytest.raises(UpstreamClosed, match=r"to the peer broke: .*reset"):
            await ask(client, peer.origin)


async def test_a_reset_in_the_middle(client: HTTPClient) -> None:
    go = anyio.Event()

    async def script(connection: Client) -> None:
        await connection.until(b"\r\n\r\n")
        await connection.send(CHUNKED + b"2\r\nok\r\n")
        await go.wait()
        connection.reset()

    async with (
        scripted(script) as peer,
        client.request(peer.origin, "GET", "/") as response,
    ):
        assert await response.receive() == b"ok"
        go.set()
        with pytest.raises(UpstreamClosed, match=r"to the peer broke: .*reset"):
            await response.receive()


async def test_refused(client: HTTPClient) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        origin = Origin.parse(f"http://127.0.0.1:{listener.getsockname()[1]}", label="the peer")
    with pytest.raises(ConnectFailed, match=r"the peer cannot be reached: .*refused") as caught:
        await ask(client, origin)
    assert caught.value.status == 503
    assert caught.value.retryable


async def test_a_name_that_nobody_has(client: HTTPClient) -> None:
    with pytest.raises(ConnectFailed, match="cannot be reached"):
        await ask(client, Origin.parse("http://name.invalid:80", label="the peer"))


async def test_a_unix_socket_that_nobody_has(client: HTTPClient) -> None:
    with pytest.raises(ConnectFailed, match="the peer cannot be reached: No such file"):
        await ask(client, Origin.parse("http+unix:///nowhere/s", label="the peer"))


async def test_no_answer_in_time(client: HTTPClient) -> None:
    async with scripted(Client.rest) as peer:
        with pytest.raises(UpstreamTimeout, match=r"the peer did not answer in 0\.001 s") as caught:
            await client.open(peer.origin, "GET", "/", head_timeout=0.001)
        assert caught.value.status == 504


async def test_no_end_in_time(client: HTTPClient) -> None:
    async def script(connection: Client) -> None:
        await connection.until(b"\r\n\r\n")
        await connection.send(CHUNKED + b"2\r\nok\r\n")
        await connection.rest()

    async with scripted(script) as peer:
        with pytest.raises(UpstreamTimeout, match=r"was not complete after 0\.01 s"):
            async with client.request(peer.origin, "GET", "/") as response:
                await response.read(100, within=0.01)


async def test_a_request_that_is_not_read() -> None:
    async def script(connection: Client) -> None:
        await stalled.wait()

    stalled = anyio.Event()
    with HTTPClient(write_stall_timeout=0.01) as client:
        async with scripted(script) as peer:
            with pytest.raises(UpstreamTimeout, match="the peer took nothing of the request"):
                await client.open(peer.origin, "POST", "/", body=bytes(30_000_000))
            stalled.set()


async def test_an_answer_before_the_request_has_ended(client: HTTPClient) -> None:
    """It refuses the body and closes: what it said is read all the same."""

    async def script(connection: Client) -> None:
        await connection.until(b"\r\n\r\n")
        await connection.send(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
        connection.end_output()

    async with (
        scripted(script) as peer,
        client.request(peer.origin, "POST", "/", body=bytes(30_000_000)) as response,
    ):
        assert response.status == 413
        assert await response.read(10) == b"no"


async def test_header_values_cannot_smuggle(client: HTTPClient) -> None:
    import h11

    async with scripted() as peer:
        with pytest.raises(h11.LocalProtocolError):
            await client.open(peer.origin, "GET", "/", [("x", "a\r\nb: c")])
        with pytest.raises(h11.LocalProtocolError):
            await client.open(peer.origin, "GET", "/ HTTP/1.1\r\nx: y")
