"""Who is called when a socket can be read: from start to stop, and nobody else's errors."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import anyio
import anyio.lowlevel
import pytest

from tilert_stream.http.readiness import make_readiness

TURNS = 10
"""Turns of the loop, in which whatever waits for a readable socket is called."""


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    left, right = socket.socketpair()
    with left, right:
        left.settimeout(0)
        yield left, right


async def turn() -> None:
    for _ in range(TURNS):
        await anyio.lowlevel.checkpoint()


async def test_it_calls_from_start_to_stop(pair: tuple[socket.socket, socket.socket]) -> None:
    sock, far = pair
    read: list[bytes] = []
    readiness = make_readiness(sock, lambda: read.append(sock.recv(9)))
    far.send(b"early")
    await turn()
    assert read == []
    readiness.start()
    readiness.start()
    await turn()
    assert read == [b"early"]
    far.send(b"more")
    await turn()
    assert read == [b"early", b"more"]
    readiness.stop()
    readiness.stop()
    far.send(b"late")
    await turn()
    assert read == [b"early", b"more"]
    readiness.start()
    await turn()
    assert read == [b"early", b"more", b"late"]
    readiness.stop()


async def test_one_that_is_stopped_before_its_first_turn_calls_nobody(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    sock, far = pair
    called: list[int] = []
    readiness = make_readiness(sock, lambda: called.append(1))
    far.send(b"x")
    readiness.start()
    readiness.stop()
    await turn()
    assert called == []


async def test_whoever_is_called_may_stop_and_start_it(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    sock, far = pair
    read: list[bytes] = []

    def take() -> None:
        readiness.stop()
        read.append(sock.recv(1))
        if len(read) < 3:
            readiness.start()

    readiness = make_readiness(sock, take)
    far.send(b"abcd")
    readiness.start()
    await turn()
    assert read == [b"a", b"b", b"c"]
    readiness.start()
    await turn()
    assert read == [b"a", b"b", b"c", b"d"]


async def test_a_socket_that_is_closed_under_it_harms_nobody(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    sock, _ = pair
    called: list[int] = []
    readiness = make_readiness(sock, lambda: called.append(1))
    readiness.start()
    await turn()
    anyio.notify_closing(sock)
    readiness.stop()
    sock.close()
    await turn()
    assert called == []


async def test_on_trio_a_fault_is_logged_and_the_run_goes_on(
    pair: tuple[socket.socket, socket.socket],
    anyio_backend_name: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if anyio_backend_name != "trio":
        pytest.skip("asyncio has a handler of its own for that")
    sock, far = pair

    def fail() -> None:
        raise ZeroDivisionError

    readiness = make_readiness(sock, fail)
    far.send(b"x")
    readiness.start()
    await turn()
    assert "nobody is told any more" in caplog.text
    readiness.stop()
