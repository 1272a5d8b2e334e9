"""Who is called when a socket can be read: from start to stop, and nobody else's errors."""

from __future__ import annotations

import asyncio
import gc
import socket
import weakref
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

import anyio
import anyio.lowlevel
import pytest

from tilert_stream.http import socket_set
from tilert_stream.http.readiness import Readiness
from tilert_stream.http.socket_set import SocketSet

LIMIT = 60
"""Seconds after which a test that hangs fails; nothing waits for it otherwise."""

TURNS = 10
"""Turns of the loop, in which whatever waits for a readable socket is called."""


@contextmanager
def connected() -> Generator[tuple[socket.socket, socket.socket]]:
    left, right = socket.socketpair()
    with left, right:
        left.settimeout(0)
        yield left, right


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    with connected() as sockets:
        yield sockets


@pytest.fixture
def another_pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    with connected() as sockets:
        yield sockets


@pytest.fixture(autouse=True, params=["epoll", "selectors"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop has a new set of sockets, of the kind that is asked for."""
    monkeypatch.setattr(socket_set, "sets_of_loops", WeakKeyDictionary[object, object]())
    if request.param == "selectors":
        monkeypatch.setattr(socket_set, "new_set", socket_set.SelectorSet)


async def turn() -> None:
    for _ in range(TURNS):
        await anyio.lowlevel.checkpoint()


async def test_it_calls_from_start_to_stop(pair: tuple[socket.socket, socket.socket]) -> None:
    sock, far = pair
    read: list[bytes] = []
    readiness = Readiness(sock, lambda: read.append(sock.recv(9)))
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
    readiness = Readiness(sock, lambda: called.append(1))
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

    readiness = Readiness(sock, take)
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
    readiness = Readiness(sock, lambda: called.append(1))
    readiness.start()
    await turn()
    anyio.notify_closing(sock)
    readiness.stop()
    sock.close()
    await turn()
    assert called == []


async def test_a_fault_is_logged_and_the_others_are_called(
    pair: tuple[socket.socket, socket.socket],
    another_pair: tuple[socket.socket, socket.socket],
    caplog: pytest.LogCaptureFixture,
) -> None:
    sock, far = pair
    other, other_far = another_pair
    read: list[bytes] = []

    def fail() -> None:
        readiness.stop()
        raise ZeroDivisionError

    readiness = Readiness(sock, fail)
    other_readiness = Readiness(other, lambda: read.append(other.recv(9)))
    readiness.start()
    other_readiness.start()
    far.send(b"x")
    other_far.send(b"y")
    await turn()
    assert "ZeroDivisionError" in caplog.text
    assert read == [b"y"]
    other_readiness.stop()


async def test_who_is_stopped_by_another_in_the_same_turn_is_not_called(
    pair: tuple[socket.socket, socket.socket],
    another_pair: tuple[socket.socket, socket.socket],
) -> None:
    called: list[str] = []
    both: list[Readiness] = []

    def stop_both(name: str) -> None:
        called.append(name)
        for each in both:
            each.stop()

    both.append(Readiness(pair[0], lambda: stop_both("first")))
    both.append(Readiness(another_pair[0], lambda: stop_both("second")))
    pair[1].send(b"x")
    another_pair[1].send(b"y")
    for each in both:
        each.start()
    await turn()
    assert len(called) == 1


async def test_one_that_stops_late_leaves_the_number_to_its_new_owner(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    sock, far = pair
    read: list[bytes] = []
    late = Readiness(sock, lambda: read.append(b"late"))
    late.start()
    owner = Readiness(sock, lambda: read.append(sock.recv(9)))
    owner.start()
    late.stop()
    far.send(b"x")
    await turn()
    assert read == [b"x"]
    owner.stop()


async def test_an_end_is_told_until_it_is_read(pair: tuple[socket.socket, socket.socket]) -> None:
    sock, far = pair
    told: list[int] = []

    def count() -> None:
        told.append(1)
        if len(told) == 3:
            readiness.stop()

    readiness = Readiness(sock, count)
    readiness.start()
    far.close()
    await turn()
    assert len(told) == 3


async def test_more_sockets_than_one_turn_looks_after(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket_set, "EVENTS", 1)
    pairs = [socket.socketpair() for _ in range(5)]
    read: list[bytes] = []

    def take(sock: socket.socket) -> None:
        read.append(sock.recv(9))

    readinesses: list[Readiness] = []
    for number, (left, right) in enumerate(pairs):
        left.settimeout(0)
        readinesses.append(Readiness(left, lambda left=left: take(left)))  # type: ignore[misc]
        readinesses[-1].start()
        right.send(b"%d" % number)
    await turn()
    assert sorted(read) == [b"0", b"1", b"2", b"3", b"4"]
    for each, ends in zip(readinesses, pairs, strict=True):
        each.stop()
        for end in ends:
            end.close()


class Pressed:
    """A thread without any time left."""

    was_high = True

    def high(self) -> bool:
        return True


async def test_under_pressure_many_rest_and_nothing_is_lost(
    pair: tuple[socket.socket, socket.socket],
    another_pair: tuple[socket.socket, socket.socket],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket_set, "CROWD", 2)
    monkeypatch.setattr(socket_set, "Pressure", Pressed)
    monkeypatch.setattr(socket_set, "REST", 0)
    looks: list[bool] = []
    call = SocketSet.call

    def counted(members: SocketSet) -> bool:
        looks.append(call(members))
        return looks[-1]

    monkeypatch.setattr(SocketSet, "call", counted)
    read: list[bytes] = []
    readinesses = [
        Readiness(sock, lambda sock=sock: read.append(sock.recv(1)))  # type: ignore[misc]
        for sock, _ in (pair, another_pair)
    ]
    for readiness in readinesses:
        readiness.start()
    pair[1].send(b"ace")
    another_pair[1].send(b"bd")
    with anyio.fail_after(LIMIT):
        while len(read) < 5:
            await anyio.lowlevel.checkpoint()
    assert sorted(read) == [b"a", b"b", b"c", b"d", b"e"]
    assert looks == [True, True, False], "one alone need not rest"
    for readiness in readinesses:
        readiness.stop()


async def test_whoever_takes_long_lets_others_pass(
    pair: tuple[socket.socket, socket.socket],
    another_pair: tuple[socket.socket, socket.socket],
) -> None:
    """Without a turn of the loop: in a task, and within a call of the loop's own."""
    read: list[bytes] = []

    def take_long() -> None:
        read.append(b"begun by " + pair[0].recv(9))
        another_pair[1].send(b"2")
        long.let_others_pass()
        read.append(b"ended")

    another_pair[1].settimeout(0)
    long = Readiness(pair[0], take_long)
    other = Readiness(another_pair[0], lambda: read.append(another_pair[0].recv(1)))
    long.start()
    other.start()
    another_pair[1].send(b"1")
    long.let_others_pass()
    assert read == [b"1"]
    pair[1].send(b"x")
    await turn()
    assert read == [b"1", b"begun by x", b"2", b"ended"]
    long.stop()
    other.stop()


async def test_who_has_passed_is_not_called_again_for_the_same(
    pair: tuple[socket.socket, socket.socket],
    another_pair: tuple[socket.socket, socket.socket],
    caplog: pytest.LogCaptureFixture,
) -> None:
    read: list[bytes] = []
    both: list[Readiness] = []

    def take(sock: socket.socket) -> None:
        read.append(sock.recv(1))
        both[0].let_others_pass()

    for sock, far in (pair, another_pair):
        both.append(Readiness(sock, lambda sock=sock: take(sock)))  # type: ignore[misc]
        both[-1].start()
        far.send(b"x")
    await turn()
    assert read == [b"x", b"x"]
    assert not caplog.records, "a third call would have found nothing to read"
    for each in both:
        each.stop()


async def test_under_pressure_nobody_passes(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket_set, "Pressure", Pressed)
    read: list[bytes] = []
    readiness = Readiness(pair[0], lambda: read.append(pair[0].recv(9)))
    readiness.start()
    pair[1].send(b"x")
    readiness.let_others_pass()
    assert read == []
    await turn()
    assert read == [b"x"]
    readiness.stop()


def test_a_socket_that_nobody_has_closed_does_not_keep_its_loop(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    async def forget_one() -> weakref.ref[object]:
        loop = asyncio.get_running_loop()
        Readiness(pair[0], loop.time).start()
        return weakref.ref(loop)

    loop_of_before = asyncio.run(forget_one())
    gc.collect()
    assert loop_of_before() is None
