"""A client, and a peer that is a bare socket: every byte it answers is the test's own."""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeAlias

import anyio
import pytest

from tests.http.conftest import Client
from tilert_stream.http.client import HTTPClient, Origin

LIMIT = 60
"""Seconds after which a test that hangs fails; nothing waits for it otherwise."""

Script: TypeAlias = "Callable[[Client], Awaitable[object]]"


@pytest.fixture
async def client() -> AsyncGenerator[HTTPClient]:
    with HTTPClient() as client:
        yield client
        assert client.statistics().in_use == 0
    assert client.statistics().idle == 0


class Peer:
    """Accepts connections and lets a script have each."""

    def __init__(self, listener: socket.socket) -> None:
        self.listener = listener
        host, port = listener.getsockname()[:2]
        self.origin = Origin.parse(f"http://{host}:{port}", label="the peer")
        self.accepted: list[Client] = []

    async def accept(self) -> Client:
        await anyio.wait_readable(self.listener)
        sock, _ = self.listener.accept()
        sock.settimeout(0)
        client = Client(sock)
        self.accepted.append(client)
        return client

    async def run(self, *scripts: Script) -> None:
        """Give each connection in turn to a script, and close it after that."""
        for script in scripts:
            connection = await self.accept()
            await script(connection)
            connection.close()


@asynccontextmanager
async def listening(backlog: int = 16) -> AsyncGenerator[Peer]:
    with (
        socket.create_server(("127.0.0.1", 0), backlog=backlog) as listener,
        anyio.fail_after(LIMIT),
    ):
        listener.settimeout(0)
        peer = Peer(listener)
        try:
            yield peer
        finally:
            for connection in peer.accepted:
                connection.close()


@asynccontextmanager
async def scripted(*scripts: Script) -> AsyncGenerator[Peer]:
    """A peer that runs ``scripts``, one a connection."""
    async with listening() as peer, anyio.create_task_group() as tasks:
        tasks.start_soon(peer.run, *scripts)
        yield peer


def answers(*parts: bytes) -> Script:
    """Read a request without a body, and answer with ``parts``, each sent on its own."""

    async def script(connection: Client) -> None:
        for part in parts:
            await connection.until(b"\r\n\r\n")
            await connection.send(part)

    return script


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
