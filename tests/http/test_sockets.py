"""The writer on its own: order, interrupted writes, fairness."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import anyio
import pytest

from tilert_stream.http import ClientGone
from tilert_stream.http.sockets import FAIR_BYTES, SocketWriter, wait_delivered

if TYPE_CHECKING:
    from collections.abc import Generator


@pytest.fixture
def pair() -> Generator[tuple[socket.socket, socket.socket], None, None]:
    left, right = socket.socketpair()
    with left, right:
        left.settimeout(0)
        right.settimeout(0)
        yield left, right


async def read(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        await anyio.wait_readable(sock)
        data += sock.recv(size - len(data))
    return data


async def test_writes_of_several_tasks_keep_their_order(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    """Each is whole, although the kernel takes them in pieces."""
    left, right = pair
    writer = SocketWriter(left, None)
    size = 1_000_000
    data = b""
    async with anyio.create_task_group() as group:
        for letter in (b"a", b"b", b"c"):
            group.start_soon(writer.write, letter * size)
        data = await read(right, 3 * size)
    order = sorted((b"a", b"b", b"c"), key=data.index)
    assert data == b"".join(letter * size for letter in order)


async def test_nothing_follows_a_write_that_was_cut_short(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    """The rest of it is lost; a later one would be read as part of its framing."""
    left, right = pair
    writer = SocketWriter(left, None)
    async with anyio.create_task_group() as group:
        group.start_soon(writer.write, bytes(10_000_000))
        await anyio.wait_readable(right)
        group.cancel_scope.cancel()
    right.recv(10_000_000)
    with pytest.raises(ClientGone, match="cut short"):
        await writer.write(b"next")


async def test_failure_wakes_a_write_that_waits(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    left, right = pair
    writer = SocketWriter(left, None)
    raised: list[ClientGone] = []

    async def write() -> None:
        try:
            await writer.write(bytes(10_000_000))
        except ClientGone as error:
            raised.append(error)

    failure = ClientGone("left")
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(write)
            await anyio.wait_readable(right)
            writer.fail(failure)
    assert raised == [failure]


async def test_long_writing_lets_other_tasks_run(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    left, right = pair
    writer = SocketWriter(left, None)
    ran = anyio.Event()

    async def other() -> None:
        ran.set()

    async with anyio.create_task_group() as group:
        group.start_soon(other)
        for _ in range(3 * FAIR_BYTES // 1000):
            await writer.write(bytes(1000))
            right.recv(1000)
        assert ran.is_set()


async def test_delivered_is_known() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as client,
    ):
        sock, _ = listener.accept()
        with sock, anyio.fail_after(60):
            sock.settimeout(0)
            sock.send(b"x")
            await wait_delivered(sock, 1000)
            assert client.recv(1) == b"x"
