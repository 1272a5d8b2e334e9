"""A server in this process, and a client that is a bare socket: every byte is the test's own."""

from __future__ import annotations

import socket
import struct
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Protocol

import anyio
import anyio.lowlevel
import pytest

from tilert_stream.http import Server, ServerSettings

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

PLAIN = ServerSettings(port=0, lifespan="off")

LIMIT = 60
"""Seconds after which a test that hangs fails; nothing waits for it otherwise. Not for a clock
that jumps."""


class Client:
    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.buffer = b""

    async def send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[self.sock.send(view) :]
            except BlockingIOError:
                await anyio.wait_writable(self.sock)

    async def recv(self) -> bytes:
        while True:
            await anyio.wait_readable(self.sock)
            try:
                return self.sock.recv(65536)
            except BlockingIOError:
                continue

    async def until(self, mark: bytes) -> bytes:
        """Everything up to ``mark`` and the mark itself."""
        while mark not in self.buffer:
            data = await self.recv()
            assert data, f"the connection ended after {self.buffer!r}"
            self.buffer += data
        found, _, self.buffer = self.buffer.partition(mark)
        return found + mark

    async def rest(self) -> bytes:
        """Everything up to the end of the stream."""
        while data := await self.recv():
            self.buffer += data
        found, self.buffer = self.buffer, b""
        return found

    async def get(self, path: str = "/") -> bytes:
        await self.send(b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n" % path.encode())
        return await self.answer()

    async def answer(self) -> bytes:
        """One answer with a Content-Length: its head and body."""
        head = await self.until(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        while len(self.buffer) < length:
            data = await self.recv()
            assert data
            self.buffer += data
        body, self.buffer = self.buffer[:length], self.buffer[length:]
        return head + body

    def end_output(self) -> None:
        self.sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        if self.sock.fileno() != -1:
            anyio.notify_closing(self.sock)
            self.sock.close()

    def reset(self) -> None:
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()


class Running:
    def __init__(self, server: Server, addresses: list[tuple[str, int | None]]) -> None:
        self.server = server
        self.addresses = addresses
        self.clients: list[Client] = []

    @property
    def url(self) -> str:
        host, port = self.addresses[0]
        return f"http://{host}:{port}"

    async def connect(self, *, receive_buffer: int | None = None) -> Client:
        host, port = self.addresses[0]
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        if port is None:
            family = socket.AF_UNIX
        sock = socket.socket(family)
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        try:
            sock.connect(host if port is None else (host, port))
        except OSError:
            sock.close()
            raise
        sock.settimeout(0)
        client = Client(sock)
        self.clients.append(client)
        return client

    async def no_connections(self) -> None:
        """Wait until the server has taken in every client and seen it off."""
        while self.server.connections or self.server.statistics().accepted_total < len(
            self.clients
        ):
            await anyio.lowlevel.checkpoint()
        assert self.server.statistics().requests == 0


class Serving(Protocol):
    def __call__(
        self, app: ASGIApp, settings: ServerSettings = PLAIN, limit: float | None = LIMIT
    ) -> AbstractAsyncContextManager[Running]: ...


@pytest.fixture
def serving() -> Serving:
    @asynccontextmanager
    async def start(
        app: ASGIApp, settings: ServerSettings = PLAIN, limit: float | None = LIMIT
    ) -> AsyncGenerator[Running, None]:
        server = Server(app, settings)
        with anyio.fail_after(limit):
            async with anyio.create_task_group() as group:
                running = Running(server, await group.start(server.serve))
                try:
                    yield running
                except BaseException:
                    server.cut()
                    raise
                finally:
                    for client in running.clients:
                        client.close()
                    server.drain()
        statistics = server.statistics()
        assert (statistics.connections, statistics.requests) == (0, 0)

    return start


async def read_body(receive: Receive) -> bytes:
    body = b""
    while True:
        message: Message = await receive()
        assert message["type"] == "http.request"
        body += bytes(message["body"])
        if not message["more_body"]:
            return body


async def hello(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with the method, the path and the body."""
    body = await read_body(receive)
    answer = b"%b %b %b" % (scope["method"].encode(), scope["raw_path"], body)
    length = str(len(answer)).encode()
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]}
    )
    await send({"type": "http.response.body", "body": answer})


@pytest.fixture
def echo() -> ASGIApp:
    return hello
