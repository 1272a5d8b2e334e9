"""Clients that leave early, read nothing, or send too much: the engine and the others go on."""

from __future__ import annotations

import socket
import struct

import anyio
import anyio.lowlevel
import orjson
import pytest

from tests.e2e.conftest import Serve
from tilert_engine.scripted import Script
from tilert_stream.http import ServerSettings
from tilert_stream.testing.apps import ScriptedApp

MB = 1 << 20
PATH = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"


def post(max_tokens: int) -> bytes:
    body = orjson.dumps({"prompt": "hello", "max_tokens": max_tokens, "stream": True})
    return PATH + b"content-length: %d\r\n\r\n%b" % (len(body), body)


async def read_all(client: anyio.abc.SocketStream) -> bytes:
    answer = b""
    async for data in client:
        answer += data
    return answer


@pytest.mark.parametrize("reset", [False, True], ids=["fin", "rst"])
async def test_dis_01_two_tokens_at_most_are_made_for_nobody(serve: Serve, reset: bool) -> None:
    """Once everything is given back, the engine's thread finishes the turn it is in, no more."""
    turns: list[int] = []
    app = ScriptedApp(Script(before_chain=turns.append, chain_time=0.02), slots=1)
    async with serve(app) as port:
        async with await anyio.connect_tcp("127.0.0.1", port) as client:
            await client.send(post(2000))
            answer = b""
            while answer.count(b"data: ") < 5:
                answer += await client.receive()
            if reset:
                raw: socket.socket = client.extra(anyio.abc.SocketAttribute.raw_socket)
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        while app.service.ledger.counts:
            await anyio.lowlevel.checkpoint()
        made = len(turns)
        async with await anyio.connect_tcp("127.0.0.1", port) as client:
            await client.send(post(3))
            assert b"data: [DONE]" in await read_all(client)
        # The next answer of three tokens takes two turns of the decode engine.
        assert len(turns) - made <= 2 + 2
        assert made < 1999
    assert app.decode_engine.busy == {}


async def test_dis_09_a_reader_that_takes_nothing_keeps_no_slot(serve: Serve) -> None:
    app = ScriptedApp(slots=2)
    settings = ServerSettings(port=0, write_stall_timeout=0.2)
    async with serve(app, settings) as port:
        with socket.socket() as stuck:
            stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stuck.connect(("127.0.0.1", port))
            stuck.sendall(post(2000))
            async with await anyio.connect_tcp("127.0.0.1", port) as client:
                # Few enough for the kernel: no write of this answer waits, and so none stalls.
                await client.send(post(20))
                assert b"data: [DONE]" in await read_all(client)
            with anyio.fail_after(60):
                while app.service.ledger.counts:
                    await anyio.lowlevel.checkpoint()
    assert app.decode_engine.busy == {}


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
@pytest.mark.parametrize(("size", "status"), [(1, 400), (6, 413), (40, 413), (200, 413)])
async def test_http_09_a_body_over_the_limit_is_refused_before_it_is_read(
    serve: Serve, size: int, status: int, chunked: bool
) -> None:
    """``size`` is in MB, the limit 4: what is within it is read, and is no JSON."""
    app = ScriptedApp(max_body_bytes=4 * MB)
    settings = ServerSettings(port=0, max_body_bytes=4 * MB, linger_timeout=60)
    sent = 0
    async with (
        serve(app, settings) as port,
        await anyio.connect_tcp("127.0.0.1", port) as client,
        anyio.create_task_group() as tasks,
    ):

        async def send() -> None:
            nonlocal sent
            framing = b"transfer-encoding: chunked" if chunked else b"content-length: %d"
            head = PATH + (framing if chunked else framing % (size * MB)) + b"\r\n\r\n"
            try:
                await client.send(head)
                for _ in range(size):
                    await client.send(b"%x\r\n%b\r\n" % (MB, bytes(MB)) if chunked else bytes(MB))
                    sent += 1
                if chunked:
                    await client.send(b"0\r\n\r\n")
            except anyio.BrokenResourceError:
                return

        tasks.start_soon(send)
        answer = await client.receive()
        assert answer.startswith(b"HTTP/1.1 %d " % status)
        tasks.cancel_scope.cancel()
    assert sent <= 4 + 16, "megabytes: the limit, and what the kernels hold"
