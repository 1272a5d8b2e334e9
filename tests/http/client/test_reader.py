"""The reader on its own: order, ends, what is read ahead, and what stays registered."""

from __future__ import annotations

import asyncio
import gc
import select
import socket
import struct
import warnings
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any

import anyio
import pytest
import uvloop

from tests.http.client.conftest import OK, answers, scripted
from tests.http.conftest import LIMIT, Client
from tilert_stream.http import ClientGone
from tilert_stream.http.client import HTTPClient, UpstreamClosed
from tilert_stream.http.client.reader import HIGH_WATER, Reader

HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"


class Pair:
    """A reader, and the other end of its socket."""

    def __init__(self) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        self.far = socket.create_connection(listener.getsockname())
        self.sock, _ = listener.accept()
        listener.close()
        self.sock.settimeout(0)
        self.far.settimeout(0)
        self.reader = Reader(self.sock)

    async def send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            await anyio.wait_writable(self.far)
            view = view[self.far.send(view) :]

    def close(self) -> None:
        self.reader.close()
        for sock in (self.sock, self.far):
            anyio.notify_closing(sock)
            sock.close()


@pytest.fixture
async def pair() -> AsyncGenerator[Pair]:
    pair = Pair()
    with anyio.fail_after(60):
        yield pair
    pair.close()


async def test_what_is_there_and_what_comes(pair: Pair) -> None:
    await pair.send(b"one")
    assert await pair.reader.receive() == b"one"
    received: list[bytes] = []

    async def receive() -> None:
        received.append(await pair.reader.receive())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(receive)
        await anyio.wait_all_tasks_blocked()
        await pair.send(b"two")
    assert received == [b"two"]


async def test_the_end_comes_behind_the_last_bytes_and_stays(pair: Pair) -> None:
    await pair.send(b"last")
    pair.far.shutdown(socket.SHUT_WR)
    assert await pair.reader.receive() == b"last"
    assert await pair.reader.receive() == b""


async def test_a_reset_comes_behind_the_last_bytes(pair: Pair) -> None:
    await pair.send(b"last")
    assert await pair.reader.receive() == b"last"
    pair.far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    pair.far.close()
    with pytest.raises(ClientGone, match="reading failed"):
        await pair.reader.receive()


async def test_last_words_before_a_reset_that_has_come_already(pair: Pair) -> None:
    await pair.send(b"last")
    pair.far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    pair.far.close()
    await _broken(pair.sock)
    assert await pair.reader.receive() == b"last"
    with pytest.raises(ClientGone, match="reading failed"):
        await pair.reader.receive()


async def test_last_words_of_a_connection_that_is_broken_already(pair: Pair) -> None:
    """The other end has closed, and refuses what is sent to it, before anybody reads."""
    await pair.send(b"last")
    pair.far.close()
    pair.sock.send(b"too late")
    await _broken(pair.sock)
    assert await pair.reader.receive() == b"last"
    assert await pair.reader.receive() == b""


async def _broken(sock: socket.socket) -> None:
    poll = select.poll()
    poll.register(sock, select.POLLERR)
    while not poll.poll(0):
        await anyio.lowlevel.checkpoint()


async def test_a_slow_task_reads_everything_in_order(pair: Pair) -> None:
    """No more is read ahead than the mark, and nothing is lost where reading was paused."""
    data = bytes(range(256)) * (5 * HIGH_WATER // 256)
    received = b""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(pair.send, data)
        received += await pair.reader.receive()
        await anyio.wait_all_tasks_blocked()
        while len(received) < len(data):
            piece = await pair.reader.receive()
            assert len(piece) < 2 * HIGH_WATER
            received += piece
    assert received == data


async def test_a_limit_on_waiting(pair: Pair) -> None:
    assert await pair.reader.receive_within(0.001) is None
    await pair.send(b"later")
    assert await pair.reader.receive_within(LIMIT) == b"later"


@pytest.mark.parametrize("seconds", [None, float("inf")])
async def test_no_limit_on_waiting(pair: Pair, seconds: float | None) -> None:
    received: list[bytes | None] = []

    async def receive() -> None:
        received.append(await pair.reader.receive_within(seconds))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(receive)
        await anyio.wait_all_tasks_blocked()
        assert received == []
        await pair.send(b"later")
    assert received == [b"later"]


async def _answered_within(pair: Pair, seconds: float) -> None:
    """One wait that is answered in time; a slow machine's may be answered too late."""

    async def receive() -> None:
        if await pair.reader.receive_within(seconds) is None:
            await pair.reader.receive()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(receive)
        await anyio.wait_all_tasks_blocked()
        await pair.send(b"in time")


async def test_the_limit_of_an_earlier_wait_does_not_end_a_later_one(pair: Pair) -> None:
    await _answered_within(pair, 0.01)
    received: list[bytes | None] = []

    async def receive() -> None:
        received.append(await pair.reader.receive_within(LIMIT))

    other = Pair()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(receive)
        assert await other.reader.receive_within(0.02) is None
        await anyio.wait_all_tasks_blocked()
        assert received == []
        await pair.send(b"later")
    other.close()
    assert received == [b"later"]


@pytest.mark.parametrize("before", [0.005, LIMIT])
async def test_a_later_wait_has_its_own_limit(pair: Pair, before: float) -> None:
    await _answered_within(pair, before)
    assert await pair.reader.receive_within(0.02) is None
    await pair.send(b"later")
    assert await pair.reader.receive_within(LIMIT) == b"later"


async def test_a_limit_that_passes_while_nobody_waits_is_nobodys(pair: Pair) -> None:
    await _answered_within(pair, 0.01)
    other = Pair()
    assert await other.reader.receive_within(0.02) is None
    other.close()
    await pair.send(b"later")
    assert await pair.reader.receive() == b"later"
    assert await pair.reader.receive_within(0.001) is None


async def test_a_wait_that_is_cancelled_leaves_no_limit(pair: Pair) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(pair.reader.receive_within, LIMIT)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert await pair.reader.receive_within(0.001) is None


async def test_what_is_closed_is_let_go_whatever_its_last_limit() -> None:
    pair = Pair()
    await _answered_within(pair, LIMIT)
    sock = weakref.ref(pair.sock)
    pair.close()
    del pair
    gc.collect()
    assert sock() is None


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_an_idle_connection_that_nobody_closes_does_not_keep_its_loop(
    run: Callable[[Coroutine[Any, Any, weakref.ref[object]]], weakref.ref[object]],
) -> None:
    """Its last answer could have taken longer than the loop was there."""

    async def forget_one() -> weakref.ref[object]:
        pair = Pair()
        await _answered_within(pair, LIMIT)
        pair.far.close()
        return weakref.ref(pair.sock)

    sock = run(forget_one())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
    assert sock() is None


async def test_a_receive_that_is_cancelled_loses_nothing(pair: Pair) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(pair.reader.receive)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    await pair.send(b"later")
    assert await pair.reader.receive() == b"later"


async def test_closing_wakes_whoever_waits(client: HTTPClient) -> None:
    """As a request's lease does, from outside of the task that reads."""

    async def script(connection: Client) -> None:
        await answers(HEAD)(connection)
        await connection.rest()

    async with scripted(script) as peer, anyio.create_task_group() as tasks:
        response = await client.open(peer.origin, "GET", "/")

        async def read() -> None:
            with pytest.raises(UpstreamClosed, match="broke: the connection was closed"):
                await response.receive()

        tasks.start_soon(read)
        await anyio.wait_all_tasks_blocked()
        response.close()


async def test_what_is_waited_for_stays_there(pair: Pair) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(pair.reader.wait)
        await anyio.wait_all_tasks_blocked()
        await pair.send(b"unasked")
    await pair.reader.wait()
    assert await pair.reader.receive() == b"unasked"


async def test_what_is_there_is_taken_without_waiting(pair: Pair) -> None:
    assert pair.reader.take() is None
    await pair.send(b"one")
    await pair.reader.wait()
    assert pair.reader.take() == b"one"
    assert pair.reader.take() is None
    pair.far.close()
    await pair.reader.wait()
    assert pair.reader.take() == b""


async def test_a_callback_in_place_of_a_task(pair: Pair) -> None:
    received: list[bytes | None] = []
    came = anyio.Event()

    def take() -> None:
        received.append(pair.reader.take())
        came.set()

    pair.reader.on_ready(take)
    assert pair.reader.take() is None
    await pair.send(b"one")
    await came.wait()
    assert received == [b"one"]
    pair.reader.on_ready(None)
    await pair.send(b"two")
    assert await pair.reader.receive() == b"two"
    assert received == [b"one"]


async def test_a_callback_that_has_taken_as_much_as_is_read_ahead_is_called_for_the_rest(
    pair: Pair,
) -> None:
    """Where more waits in the socket than that, reading stops, and goes on when it is taken."""
    received = bytearray()
    whole = anyio.Event()

    def take() -> None:
        received.extend(pair.reader.take() or b"")
        if len(received) == 4 * HIGH_WATER:
            whole.set()

    pair.reader.on_ready(take)
    assert pair.reader.take() is None
    data = bytes(range(256)) * (4 * HIGH_WATER // 256)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(pair.send, data)
        with anyio.fail_after(10):
            await whole.wait()
    assert received == data


async def test_an_idle_connections_end_is_waited_for(client: HTTPClient) -> None:
    ended = anyio.Event()
    go = anyio.Event()

    async def script(connection: Client) -> None:
        await answers(OK)(connection)
        await go.wait()

    async def wait() -> None:
        await client.wait_closed(peer.origin)
        ended.set()

    async with scripted(script) as peer, anyio.create_task_group() as tasks:
        async with client.request(peer.origin, "GET", "/") as response:
            await response.read(10)
        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        assert client.statistics().idle == 0, "nobody else uses it meanwhile"
        assert not ended.is_set()
        go.set()
        await ended.wait()
        assert client.statistics().idle == 0


async def test_an_idle_connection_that_was_watched_is_used_again(client: HTTPClient) -> None:
    async with scripted(answers(OK, OK)) as peer:
        async with client.request(peer.origin, "GET", "/") as response:
            await response.read(10)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.wait_closed, peer.origin)
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
        assert client.statistics().idle == 1
        async with client.request(peer.origin, "GET", "/") as response:
            assert await response.read(10) == b"ok"
        assert client.statistics().opened_total == 1


async def test_without_an_idle_connection_there_is_no_end(client: HTTPClient) -> None:
    async with scripted() as peer, anyio.create_task_group() as tasks:
        tasks.start_soon(client.wait_closed, peer.origin)
        await anyio.wait_all_tasks_blocked()
        assert client.statistics().in_use == 0
        tasks.cancel_scope.cancel()
