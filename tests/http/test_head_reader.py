"""The reader of heads on its own: what has come is taken at once, but not for ever."""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import pytest

from tilert_stream.http import ServerSettings
from tilert_stream.http.errors import ClientGone
from tilert_stream.http.head_reader import AT_ONCE_MAX, HeadReader
from tilert_stream.http.socket_input import SocketInput

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from tilert_stream.http.request_head import RequestHead
    from tilert_stream.http.socket_input import SocketInput

LIMIT = 60
"""Seconds after which a test that hangs fails; nothing waits for it otherwise."""

SETTINGS = ServerSettings(port=0, lifespan="off")
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture
def pair() -> Generator[tuple[socket.socket, socket.socket], None, None]:
    """The server's end, and the client's: TCP, which can be reset."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        sock, _ = listener.accept()
    with sock, client:
        sock.settimeout(0)
        client.settimeout(0)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield sock, client


class Noting(SocketInput):
    """Notes how it is read."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self.log: list[str] = []

    def ready(self) -> bytes | None:
        self.log.append("ready")
        return super().ready()

    async def receive(self) -> bytes:
        self.log.append("receive")
        return await super().receive()


class Turns:
    """Another task of the same loop: how often it had its turn."""

    def __init__(self) -> None:
        self.count = 0

    async def run(self) -> None:
        while True:
            self.count += 1
            await anyio.lowlevel.checkpoint()


def reader_of(
    socket_input: SocketInput, draining: Callable[[], bool] = lambda: False
) -> HeadReader:
    return HeadReader(socket_input, SETTINGS, draining)


async def take(reader: HeadReader) -> None:
    """The next request, as if its answer had been written; it has no body."""
    request = await reader.next()
    assert request is not None
    assert request.target == b"/"
    reader.go_on(reader.take_behind())


async def test_what_has_come_is_taken_without_a_turn_but_not_always(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    sock, client = pair
    noting = Noting(sock)
    reader = reader_of(noting)
    turns = Turns()
    waits: list[bool] = []
    with anyio.fail_after(LIMIT):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(turns.run)
            for _ in range(3 * (AT_ONCE_MAX + 1)):
                client.send(GET)
                before, noting.log = turns.count, []
                await take(reader)
                waits.append("receive" in noting.log)
                assert waits[-1] or turns.count == before
            assert turns.count >= 2
            tasks.cancel_scope.cancel()
    assert waits == 3 * [*[False] * AT_ONCE_MAX, True]
    noting.close()


async def test_a_client_that_is_slower_is_waited_for(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    """And may be faster again afterwards, as often as before."""
    sock, client = pair
    noting = Noting(sock)
    reader = reader_of(noting)
    with anyio.fail_after(LIMIT):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(take, reader)
            await anyio.wait_all_tasks_blocked()
            client.send(GET)
        assert noting.log == ["ready", "receive"]
        noting.log = []
        for _ in range(AT_ONCE_MAX):
            client.send(GET)
            await take(reader)
    assert noting.log == ["ready"] * AT_ONCE_MAX
    noting.close()


async def test_half_a_head_at_once(pair: tuple[socket.socket, socket.socket]) -> None:
    sock, client = pair
    reading = SocketInput(sock)
    reader = reader_of(reading)
    client.send(b"\r\n" + GET[:9])
    with anyio.fail_after(LIMIT):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(take, reader)
            await anyio.wait_all_tasks_blocked()
            client.send(GET[9:])
    reading.close()


@pytest.mark.parametrize("at_once", [True, False])
async def test_the_end_of_the_input(
    pair: tuple[socket.socket, socket.socket], *, at_once: bool
) -> None:
    sock, client = pair
    noting = Noting(sock)
    reader = reader_of(noting)
    requests: list[RequestHead | None] = []

    async def take_next() -> None:
        requests.append(await reader.next())

    with anyio.fail_after(LIMIT):
        if at_once:
            client.shutdown(socket.SHUT_WR)
            await take_next()
        else:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(take_next)
                await anyio.wait_all_tasks_blocked()
                client.shutdown(socket.SHUT_WR)
    assert requests == [None]
    assert reader.input_ended
    assert noting.log == (["ready"] if at_once else ["ready", "receive"])
    noting.close()


async def test_a_reset(pair: tuple[socket.socket, socket.socket]) -> None:
    sock, client = pair
    noting = Noting(sock)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    with anyio.fail_after(LIMIT), pytest.raises(ClientGone):
        await reader_of(noting).next()
    assert noting.log == ["ready"]
    noting.close()


async def test_a_drain_waits_for_none(pair: tuple[socket.socket, socket.socket]) -> None:
    """What has come already is answered: the client would get a reset."""
    sock, client = pair
    noting = Noting(sock)
    reader = reader_of(noting, lambda: True)
    with anyio.fail_after(LIMIT):
        assert await reader.next() is None
        assert noting.log == ["ready"]
        client.send(GET)
        await take(reader)
    assert noting.log == ["ready", "ready"]
    noting.close()
