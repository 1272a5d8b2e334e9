"""Bodies that come with their heads, and what stands behind them: read alike in any pieces."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import pytest

from tilert_stream.http import ServerSettings

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from tests.http.conftest import Serving

REQUESTS = (
    b"POST /1 HTTP/1.1\r\nHost: x\r\nContent-Length: 6\r\n\r\na\r\n\r\nb"
    # Ended by bare line feeds: its body has what ends others' heads.
    b"POST /2 HTTP/1.1\nHost: x\nContent-Length: 7\n\n{\r\n\r\n}x"
    b"\r\nPOST /3 HTTP/1.1\r\nHost: x\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nhi"
    b"POST /4 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nyo\r\n0\r\n\r\n"
    b"POST /5 HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 3\r\n\r\nend"
    b"GET /6 HTTP/1.1\r\nHost: x\r\n\r\n"
)
BODIES = [b"/1 a\r\n\r\nb", b"/2 {\r\n\r\n}x", b"/3 hi", b"/4 yo", b"/5 end"]


async def in_chunks(scope: Scope, receive: Receive, send: Send) -> None:
    """The path and the body, without a Content-Length."""
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message["body"], message["more_body"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": scope["raw_path"], "more_body": True})
    await send({"type": "http.response.body", "body": b" " + body})


@pytest.mark.parametrize("streamed", [False, True])
async def test_requests_in_two_pieces(serving: Serving, echo: ASGIApp, streamed: bool) -> None:
    async with serving(in_chunks if streamed else echo) as running:
        for at in range(0, len(REQUESTS), 3):
            client = await running.connect()
            await client.send(REQUESTS[:at])
            for _ in range(10):
                await anyio.lowlevel.checkpoint()
            await client.send(REQUESTS[at:])
            answers = (await client.rest()).split(b"HTTP/1.1 200 OK\r\n")[1:]
            client.close()
            assert len(answers) == len(BODIES)
            for answer, body in zip(answers, BODIES, strict=True):
                path, _, content = body.partition(b" ")
                framed = b"2\r\n%b\r\n%x\r\n %b\r\n0\r\n\r\n" % (path, len(content) + 1, content)
                whole = framed if streamed else b"POST " + body
                assert answer.endswith(b"\r\n\r\n" + whole)


async def test_the_last_request_of_a_client_that_has_ended(serving: Serving, echo: ASGIApp) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/1":
            await anyio.wait_all_tasks_blocked()  # until the end of the input has been read
        await echo(scope, receive, send)

    settings = ServerSettings(port=0, lifespan="off", allow_half_close=True)
    async with serving(app, settings) as running:
        client = await running.connect()
        await client.send(
            b"POST /1 HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nab\r\n"
            b"POST /2 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\ncd\r\n0\r\n\r\n"
        )
        client.end_output()
        answers = await client.rest()
        assert b"\r\n\r\nPOST /1 ab" in answers
        assert answers.endswith(b"\r\n\r\nPOST /2 cd")
