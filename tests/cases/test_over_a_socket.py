"""The whole app on our server: each byte as a client's socket gets it, and what the log says."""

from __future__ import annotations

import logging
import re
import socket
import struct
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import orjson
import pytest
from anyio.abc import SocketAttribute, SocketStream

from tests.cases.asking import LIMIT, ByteApp, at, exchange, says
from tilert_engine.scripted import Script
from tilert_stream.asgi.wakes import HEARTBEAT
from tilert_stream.errors import EngineFault
from tilert_stream.http import Server, ServerSettings
from tilert_stream.testing import Gate

USER = {"role": "user", "content": "abc"}
both = pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])


@asynccontextmanager
async def serving(app: ByteApp, *gates: Gate, **limits: Any) -> AsyncGenerator[tuple[Server, int]]:
    server = Server(app, ServerSettings(port=0, **limits), on_drain=app.service.drain)
    with anyio.fail_after(LIMIT):
        async with anyio.create_task_group() as tasks:
            ((_, port),) = await tasks.start(server.serve)
            try:
                yield server, port
            finally:
                for gate in gates:
                    gate.open()
                server.drain()


def request(fields: dict[str, Any], *headers: str, path: str = "/v1/completions") -> bytes:
    asks = {"prompt": "abc"} if path == "/v1/completions" else {"messages": [USER]}
    body = orjson.dumps(asks | fields)
    head = (f"POST {path} HTTP/1.1", "host: x", f"content-length: {len(body)}", *headers)
    return "\r\n".join((*head, "", "")).encode() + body


async def answer(port: int, sent: bytes) -> tuple[str, bytes]:
    """An answer that ends with its connection: the head in lower case, the body without chunks."""
    raw = b""
    async with await anyio.connect_tcp("127.0.0.1", port) as client:
        await client.send(sent)
        async for data in client:
            raw += data
    return without_chunks(raw)


def without_chunks(raw: bytes) -> tuple[str, bytes]:
    """The head in lower case, and the body."""
    head, _, rest = raw.partition(b"\r\n\r\n")
    lowered = head.decode().lower()
    if "transfer-encoding: chunked" not in lowered:
        return lowered, rest
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        body += rest[: int(size, 16)]
        rest = rest[int(size, 16) + 2 :]
    return lowered, body


async def leave(client: SocketStream, *, reset: bool) -> None:
    if reset:
        raw: socket.socket = client.extra(SocketAttribute.raw_socket)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await client.aclose()


def lines(caplog: pytest.LogCaptureFixture, logger: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == logger]


async def test_met_15_created_does_not_follow_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream of many seconds: each look at the clock finds it a second on."""
    now = time.time()

    def later() -> float:
        nonlocal now
        now += 1
        return now

    app = ByteApp()
    asked = exchange(app, {"max_tokens": 5}, stream=True)
    async with app.lifespan():
        monkeypatch.setattr(time, "time", later)
        await asked.run()
        monkeypatch.undo()
    envelopes = {(c["id"], c["created"], c["model"], c["object"]) for c in asked.chunks}
    assert len(asked.chunks) == 7, "text, finish, usage"
    assert len(envelopes) == 1


async def test_http_02_nothing_is_compressed() -> None:
    """And the first event is out while the second token is not made yet."""
    with Gate() as gate:
        app = ByteApp(Script(before_chain=at(0, gate.pass_through)))
        async with serving(app, gate) as (_, port):
            async with await anyio.connect_tcp("127.0.0.1", port) as client:
                asks = {"max_tokens": 3, "stream": True}
                await client.send(request(asks, "accept-encoding: gzip, br"))
                await gate.arrival()
                raw = await client.receive()
                while b'"text":"a"' not in raw:
                    raw += await client.receive()
                gate.open()
                while b"[DONE]" not in raw:
                    raw += await client.receive()
            head = raw.partition(b"\r\n\r\n")[0].decode().lower()
            assert "content-encoding" not in head
            assert "\r\ncache-control: no-cache, no-transform\r\n" in head
            assert "\r\nx-accel-buffering: no\r\n" in head


@pytest.mark.parametrize("fails", [False, True], ids=["complete", "failed"])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_http_04_nothing_but_data_lines(path: str, fails: bool) -> None:
    """No comment, ``id:``, ``event:``, ``retry:`` or empty ``data:``, whatever the model says."""
    text = b"id: 1\n\nretry: 5\r\n\r\n: ping\n\ndata:\n\nevent: x\r"

    def fault(_turn: int) -> None:
        if fails:
            raise EngineFault("by script")

    app = ByteApp(Script(token=says(text), before_chain=at(len(text) - 2, fault)))
    fields: dict[str, Any] = {
        "max_tokens": len(text),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    async with serving(app) as (_, port):
        sent = request(fields, "connection: close", path=path)
        head, body = await answer(port, sent)
    # HTTP-01: of a stream that fails, too.
    assert "\r\ncache-control: no-cache, no-transform" in head
    assert "\r\nx-accel-buffering: no" in head
    assert "content-encoding" not in head
    assert body.endswith(b"\n\n")
    events = body[:-2].split(b"\n\n")
    assert all(re.fullmatch(rb"data: [^\r\n]+", event) for event in events), body
    if fails:
        assert list(orjson.loads(events.pop()[6:])) == ["error"]
    else:
        assert events.pop() == b"data: [DONE]"
    chunks = [orjson.loads(event[6:]) for event in events]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    said = "".join(c.get("text", c.get("delta", {}).get("content", "")) for c in choices)
    assert said.encode() == text[: -1 if fails else None]


async def test_http_04_heartbeats_stand_between_whole_events() -> None:
    """Where they are asked for: before the first token and between two."""
    raw = b""
    with Gate() as prefill, Gate() as decode:
        script = Script(before_chunk=prefill.pass_through, before_chain=at(1, decode.pass_through))
        async with (
            serving(ByteApp(script, heartbeat=0.01), prefill, decode) as (_, port),
            await anyio.connect_tcp("127.0.0.1", port) as client,
        ):
            await client.send(request({"max_tokens": 3, "stream": True}, "connection: close"))
            for gate, begun in ((prefill, b"HTTP/1.1 200"), (decode, b'"text":"b"')):
                await gate.arrival()
                while HEARTBEAT not in raw.partition(begun)[2]:
                    raw += await client.receive()
                gate.open()
            async for data in client:
                raw += data
    _, body = without_chunks(raw)
    events = body.split(b"\n\n")
    assert events.pop() == b""
    assert all(re.fullmatch(rb"data: [^\r\n]+|: still here", event) for event in events), body
    assert events[0] == b": still here"
    assert events.pop() == b"data: [DONE]"
    chunks = [orjson.loads(event[6:]) for event in events if event.startswith(b"data: ")]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "abc"


async def test_http_05_a_heartbeat_that_cannot_be_sent_tells_that_the_client_has_gone() -> None:
    """Where a closed sending side alone does not."""
    with Gate() as gate:
        app = ByteApp(Script(before_chunk=gate.pass_through), heartbeat=0.01)
        async with serving(app, gate, allow_half_close=True) as (server, port):
            async with await anyio.connect_tcp("127.0.0.1", port) as client:
                await client.send(request({"max_tokens": 3, "stream": True}))
                await gate.arrival()
                raw = b""
                while HEARTBEAT not in raw:
                    raw += await client.receive()
            while server.connections:
                await anyio.lowlevel.checkpoint()
            assert app.service.ledger.counts == {}, "prefill still stands"
            assert server.statistics().gone_total == 1


@both
@pytest.mark.parametrize("reset", [False, True], ids=["fin", "rst"])
async def test_dis_02_leaving_prefill_is_logged_as_499(
    caplog: pytest.LogCaptureFixture, stream: bool, reset: bool
) -> None:
    caplog.set_level(logging.INFO)
    with Gate() as gate:
        app = ByteApp(Script(before_chunk=gate.pass_through))
        async with serving(app, gate) as (server, port):
            client = await anyio.connect_tcp("127.0.0.1", port)
            async with aclosing(client):
                await client.send(request({"max_tokens": 3, "stream": stream}))
                await gate.arrival()
                await leave(client, reset=reset)
            while server.connections:
                await anyio.lowlevel.checkpoint()
            assert app.service.ledger.counts == {}, "prefill still stands"
    (line,) = lines(caplog, "tilert_stream.access")
    assert re.search(r'"POST /v1/completions HTTP/1\.1" 499 0 B [\d.]+ ms gone ', line)
    assert max(record.levelno for record in caplog.records) == logging.INFO


ERRORS = {
    "no HTTP": b"nonsense\r\n\r\n",
    "too large": b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999\r\n\r\n",
    "no path": b"GET /nothing HTTP/1.1\r\nhost: x\r\n\r\n",
    "bad field": request({"max_tokens": 0}),
    "half a body": request({"max_tokens": 3})[:-1],
    "failed": request({"max_tokens": 3}),
    "failed stream": request({"max_tokens": 3, "stream": True}),
}


@pytest.mark.parametrize("name", ERRORS)
async def test_dis_10_leaving_beside_errors(caplog: pytest.LogCaptureFixture, name: str) -> None:
    """At twenty moments of an answer that is an error: a line each, and never more than info."""
    caplog.set_level(logging.INFO)

    def fault(_turn: int) -> None:
        raise EngineFault("by script")

    app = ByteApp(Script(before_chain=fault))
    async with serving(app, linger_timeout=0) as (server, port):
        for number in range(20):
            caplog.clear()
            client = await anyio.connect_tcp("127.0.0.1", port)
            async with aclosing(client):
                await client.send(ERRORS[name])
                for _ in range(number):
                    await anyio.lowlevel.checkpoint()
                await leave(client, reset=number % 2 == 0)
            while server.connections or server.statistics().accepted_total <= number:
                await anyio.lowlevel.checkpoint()
            # What failed beside the leaving is the engine, and is told as that.
            levels = {r.levelno for r in caplog.records if r.name != "tilert_stream.asgi.response"}
            assert levels <= {logging.INFO}
            assert not any(record.exc_info for record in caplog.records)
            # A refusal is told beside the leaving of who was refused.
            assert len(lines(caplog, "tilert_stream.http")) <= 2
            assert len(lines(caplog, "tilert_stream.access")) <= 1
        assert app.service.ledger.counts == {}
    assert app.decode_engine.busy == {}
