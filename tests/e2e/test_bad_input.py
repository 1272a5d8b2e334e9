"""Whatever a client sends, over a socket: a 4xx that names the field, and a server that goes on.

No answer is a 5xx, nothing is logged as an error, nothing stays held, and a connection that may go
on does.
"""

from __future__ import annotations

import gzip
import logging
import socket
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, closing
from typing import Any, Final

import anyio
import h11
import orjson
import pytest

from tilert_stream.asgi import App
from tilert_stream.openai.parameters import PARAMETERS
from tilert_stream.testing.apps import ScriptedApp

Serve = Callable[[App], AbstractAsyncContextManager[int]]

CHAT: Final = "/v1/chat/completions"
COMPLETION: Final = "/v1/completions"
HI: Final[dict[str, Any]] = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
GOOD: Final[dict[str, dict[str, Any]]] = {CHAT: HI, COMPLETION: {"prompt": "hi", "max_tokens": 3}}
ENDPOINTS: Final = {"chat": CHAT, "completion": COMPLETION}


class Client:
    """One connection, kept for as long as the server keeps it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._sock: socket.socket | None = None
        self._conn = h11.Connection(h11.CLIENT)
        self.reused = 0

    async def post(
        self, path: str, body: bytes, headers: tuple[tuple[str, str], ...] = ()
    ) -> tuple[int, bytes]:
        sock = self._connected()
        head = h11.Request(
            method="POST",
            target=path,
            headers=[("host", "x"), ("content-length", str(len(body))), *headers],
        )
        events = (head, h11.Data(data=body), h11.EndOfMessage())
        await send_all(sock, b"".join(self._conn.send(event) or b"" for event in events))
        status, content = 0, b""
        while True:
            event = self._conn.next_event()
            if event is h11.NEED_DATA:
                await anyio.wait_readable(sock)
                self._conn.receive_data(sock.recv(65536))
            elif isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                content += event.data
            elif isinstance(event, h11.EndOfMessage):
                return status, content

    def _connected(self) -> socket.socket:
        if self._sock is not None and self._conn.our_state is h11.DONE:
            self._conn.start_next_cycle()
            self.reused += 1
            return self._sock
        self.close()
        self._conn = h11.Connection(h11.CLIENT)
        self._sock = socket.create_connection(("127.0.0.1", self._port))
        self._sock.setblocking(False)
        return self._sock

    def close(self) -> None:
        if self._sock is not None:
            anyio.notify_closing(self._sock)
            self._sock.close()


async def send_all(sock: socket.socket, data: bytes) -> None:
    view = memoryview(data)
    while view:
        await anyio.wait_writable(sock)
        view = view[sock.send(view) :]


def assert_answered(status: int, content: bytes, what: object, *, stream: bool) -> None:
    if status == 200:
        assert content.endswith(b"data: [DONE]\n\n" if stream else b"}"), (what, content)
        return
    assert 400 <= status < 500, (what, status, content)
    assert_error(content, what)


def assert_error(content: bytes, what: object) -> dict[str, Any]:
    error: dict[str, Any] = orjson.loads(content)["error"]
    assert error.keys() == {"message", "type", "param", "code"}, what
    assert error["message"], what
    return error


async def assert_it_goes_on(client: Client) -> None:
    for path, body in GOOD.items():
        status, content = await client.post(path, orjson.dumps(body))
        assert (status, orjson.loads(content)["usage"]["completion_tokens"]) == (200, 3)


def assert_unharmed(app: ScriptedApp, caplog: pytest.LogCaptureFixture) -> None:
    """Once the server has drained: an answer leaves before what it held goes back."""
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING] == []
    assert app.service.ledger.counts == {}
    assert app.decode_engine.busy == {}


WRONG: Final[list[object]] = [
    *(None, True, 0, -1, 1.5, -1e308, 10**18, "", "5", "x" * 2000),
    *([], {}, [None], [[]], [{}], [""], ["a"] * 17, [-1], {"type": "text"}),
]


async def test_every_known_field_with_every_wrong_type(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    app = ScriptedApp(max_seq_len=64)
    fields = [(ENDPOINTS[kind], each.name) for each in PARAMETERS for kind in each.endpoints]
    async with serve(app) as port:
        with closing(Client(port)) as client:
            for path, name in fields:
                for index, value in enumerate(WRONG):
                    stream = index % 2 == 0
                    body = {**GOOD[path], "stream": stream, name: value}
                    status, content = await client.post(path, orjson.dumps(body))
                    what = (path, name, value)
                    assert_answered(status, content, what, stream=body["stream"] is True)
                    if status != 200:
                        blamed = assert_error(content, what)["param"]
                        # Of two fields that do not go together, either may be blamed.
                        others = (
                            "messages",
                            "prompt",
                            "max_tokens",
                            "min_tokens",
                            "stream_options",
                        )
                        assert blamed.startswith((name, *others)), what
            await assert_it_goes_on(client)
            assert client.reused == len(fields) * len(WRONG) + 1
    assert_unharmed(app, caplog)


def with_content(content: bytes) -> bytes:
    return b'{"max_tokens":3,"messages":[{"role":"user","content":' + content + b"}]}"


def with_field(field: bytes) -> bytes:
    return (
        b'{"max_tokens":3,"messages":[{"role":"user","content":"a"}],"prompt":"a",' + field + b"}"
    )


NESTED: Final = b"[" * 1000 + b"]" * 1000
NOT_JSON: Final[dict[str, bytes]] = {
    "empty": b"",
    "blank": b" \r\n",
    "cut": b'{"messages":[{',
    "array": b"[]",
    "null": b"null",
    "open brackets": b"[" * 100_000,
    "open objects": b'{"a":' * 100_000,
    "closed brackets": with_content(b"[" * 100_000 + b"]" * 100_000),
    "5,000 digits": with_field(b'"seed":' + b"9" * 5000),
    "5,000 digits of exponent": with_field(b'"temperature":1e' + b"9" * 5000),
    "NaN": with_field(b'"temperature":NaN'),
    "Infinity": with_field(b'"top_p":Infinity'),
    "-Infinity": with_field(b'"min_p":-Infinity'),
    "invalid UTF-8": with_content(b'"\xff"'),
    "overlong UTF-8": with_content(b'"\xc0\xaf"'),
    "a surrogate in UTF-8": with_content(b'"\xed\xa0\x80"'),
    "lone high surrogate": with_content(b'"\\ud800"'),
    "lone low surrogate": with_content(b'"a\\udc00b"'),
    "lone surrogate as a key": with_field(b'"\\ud800":1'),
    "raw control character": with_content(b'"\x01"'),
    "byte order mark": b"\xef\xbb\xbf" + with_content(b'"a"'),
    "UTF-16": with_content(b'"a"').decode().encode("utf-16"),
    "gzip": gzip.compress(with_content(b'"a"'), mtime=0),
    "something behind it": with_content(b'"a"') + b"x",
    "single quotes": b"{'prompt':'a'}",
    "a form": b"prompt=a&max_tokens=3",
}


@pytest.mark.parametrize("path", GOOD)
async def test_no_json(serve: Serve, caplog: pytest.LogCaptureFixture, path: str) -> None:
    app = ScriptedApp()
    async with serve(app) as port:
        with closing(Client(port)) as client:
            for name, body in NOT_JSON.items():
                status, content = await client.post(path, body)
                assert (name, status) == (name, 400)
                error = assert_error(content, name)
                assert (name, error["param"]) == (name, None)
                assert len(error["message"]) < 200
            await assert_it_goes_on(client)
            assert client.reused == len(NOT_JSON) + 1
    assert_unharmed(app, caplog)


STRANGE: Final[dict[str, bytes]] = {
    "nested in an unknown field": with_field(b'"zzz":' + NESTED),
    "nested in an inert field": with_field(b'"metadata":' + NESTED),
    "nested in a refused field": with_field(b'"tools":' + NESTED),
    "nested in a served field": with_field(b'"stop":' + NESTED),
    "nested for the template": with_field(b'"chat_template_kwargs":{"a":' + NESTED + b"}"),
    "names for the template": with_field(
        b'"chat_template_kwargs":{"self":1,"":2,"range":3,"loop":4,"__class__":5}'
    ),
    "10,000 unknown fields": with_field(b",".join(b'"f%d":1' % n for n in range(10_000))),
    "a field twice": with_field(b'"max_tokens":-1,"max_tokens":2'),
    "10,000 messages": b'{"messages":['
    + b",".join([b'{"role":"user","content":"a"}'] * 10_000)
    + b'],"prompt":[1]}',
    "100,000 stop ids": with_field(b'"stop_token_ids":[' + b",".join([b"1"] * 100_000) + b"]"),
    "every id stops": with_field(
        b'"min_tokens":1,"stop_token_ids":[' + b",".join(b"%d" % n for n in range(257)) + b"]"
    ),
    "no character": with_content(b'"\\u0000\\uffff\\ufdd0"'),
    "line separators": with_content(b'"\\u2028\\u2029\\u0085\\r\\n\\r\\n"'),
    "a number in 5,000 digits": with_field(b'"temperature":0.' + b"0" * 5000 + b"1"),
    "hot": with_field(b'"temperature":1e308,"top_p":5e-324'),
    "64 bits": with_field(b'"seed":18446744073709551615'),
    "65 bits": with_field(b'"seed":18446744073709551616'),
    "a long name": with_field(b'"model":"' + b"x" * 100_000 + b'"'),
    "half a megabyte": with_field(b'"prompt":"' + b"x" * 500_000 + b'"'),
}


@pytest.mark.parametrize("path", GOOD)
async def test_strange_json(serve: Serve, caplog: pytest.LogCaptureFixture, path: str) -> None:
    app = ScriptedApp()
    async with serve(app) as port:
        with closing(Client(port)) as client:
            for name, body in STRANGE.items():
                status, content = await client.post(path, body)
                assert_answered(status, content, name, stream=False)
                assert len(content) < 1000, name
            await assert_it_goes_on(client)
    assert_unharmed(app, caplog)


async def test_a_body_is_json_by_its_content_type_whatever_is_accepted(serve: Serve) -> None:
    kinds = {
        "text/plain": 415,
        "application/x-www-form-urlencoded": 415,
        "application/JSON;x=y": 200,
    }
    async with serve(ScriptedApp()) as port:
        with closing(Client(port)) as client:
            for kind, expected in kinds.items():
                status, _ = await client.post(
                    CHAT, orjson.dumps(HI), (("content-type", kind), ("accept", "text/html"))
                )
                assert (kind, status) == (kind, expected)
