"""Cancelled at each place where a request can be stuck: no connection stays open."""

from __future__ import annotations

import gc
import os
import socket
import ssl
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager

import anyio
import pytest

from tests.http.client.conftest import OK, Peer, answers, listening
from tests.http.conftest import Client
from tilert_stream.http.client import ConnectFailed, HTTPClient, Origin
from tilert_stream.http.socket_set import socket_set
from tilert_stream.parking import make_parking

CHUNK = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n"


def open_files() -> set[str]:
    make_parking()  # of an event loop's own files the last ones that open
    socket_set()
    gc.collect()  # with the loop of the test before goes its file
    return set(os.listdir("/proc/self/fd"))


class Case:
    """A client stuck at one place, and the peer it is stuck with."""

    def __init__(self, client: HTTPClient, peer: Peer) -> None:
        self.client = client
        self.peer = peer
        self.stuck = anyio.Event()

    async def connecting(self) -> None:
        # The kernel drops the SYN where the backlog is full.
        await self.client.open(self.peer.origin, "GET", "/")

    async def shaking_hands(self) -> None:
        origin = Origin.parse(f"https://127.0.0.1:{self.peer.origin.port}")
        await self.client.open(origin, "GET", "/")

    async def writing(self) -> None:
        await self.client.open(self.peer.origin, "POST", "/", body=bytes(30_000_000))

    async def waiting_for_the_head(self) -> None:
        await self.client.open(self.peer.origin, "GET", "/")

    async def reading(self) -> None:
        async with self.client.request(self.peer.origin, "GET", "/") as response:
            await response.receive()
            await response.receive()

    async def reading_it_all(self) -> None:
        async with self.client.request(self.peer.origin, "GET", "/") as response:
            await response.read(100, within=1000)

    async def between_the_pieces(self) -> None:
        async with self.client.request(self.peer.origin, "GET", "/") as response:
            await response.receive()
            await anyio.sleep_forever()

    async def retrying(self) -> None:
        async with self.client.request(self.peer.origin, "GET", "/") as response:
            await response.read(100)
        await self.client.open(self.peer.origin, "GET", "/")

    async def be_a_peer(self, place: str) -> None:
        """What the peer does until the client is stuck, and that it sees it leave."""
        if place == "connecting":
            await anyio.wait_all_tasks_blocked()
            self.stuck.set()
            return
        connection = await self.peer.accept()
        if place == "retrying":
            await answers(OK)(connection)
            await connection.until(b"\r\n\r\n")
            connection.close()
            connection = await self.peer.accept()
        if place not in ("shaking_hands", "writing"):
            await connection.until(b"\r\n\r\n")
        if place in ("reading", "reading_it_all", "between_the_pieces"):
            await connection.send(CHUNK)
        if place == "shaking_hands":
            await anyio.wait_readable(connection.sock)
        await anyio.wait_all_tasks_blocked()
        self.stuck.set()
        await see_it_leave(connection)


async def see_it_leave(connection: Client) -> None:
    try:
        await connection.rest()
    except ConnectionResetError:
        return


PLACES: dict[str, Callable[[Case], Coroutine[None, None, None]]] = {
    "connecting": Case.connecting,
    "shaking_hands": Case.shaking_hands,
    "writing": Case.writing,
    "waiting_for_the_head": Case.waiting_for_the_head,
    "reading": Case.reading,
    "reading_it_all": Case.reading_it_all,
    "between_the_pieces": Case.between_the_pieces,
    "retrying": Case.retrying,
}


@asynccontextmanager
async def full_backlog(peer: Peer) -> AsyncGenerator[None]:
    """A backlog of 1 has room for two connections that nobody accepts."""
    waiting = [socket.socket() for _ in range(2)]
    try:
        for sock in waiting:
            sock.settimeout(0)
            sock.connect_ex((peer.origin.host, peer.origin.port))
            await anyio.wait_writable(sock)
        yield
    finally:
        for sock in waiting:
            anyio.notify_closing(sock)
            sock.close()


@pytest.mark.parametrize("place", PLACES)
async def test_cancelled_while(place: str) -> None:
    context = ssl.create_default_context()
    with HTTPClient(context=context) as client:
        async with listening(backlog=1 if place == "connecting" else 16) as peer:
            case = Case(client, peer)
            before = open_files()
            if place == "connecting":
                async with full_backlog(peer):
                    before = open_files()
                    await leave(case, place)
                    assert open_files() == before
            else:
                await leave(case, place)
                for connection in peer.accepted:
                    connection.close()
                assert open_files() == before
        statistics = client.statistics()
        assert (statistics.in_use, statistics.idle) == (0, 0)


async def leave(case: Case, place: str) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(case.be_a_peer, place)
        async with anyio.create_task_group() as asking:
            asking.start_soon(PLACES[place], case)
            await case.stuck.wait()
            assert case.client.statistics().in_use == 1
            asking.cancel_scope.cancel()


async def test_the_time_to_connect_is_limited() -> None:
    with HTTPClient() as client:
        async with listening(backlog=1) as peer, full_backlog(peer):
            before = open_files()
            with pytest.raises(
                ConnectFailed, match=r"the peer cannot be reached: no answer in 0\.01 s"
            ):
                await client.open(peer.origin, "GET", "/", connect_timeout=0.01)
            assert open_files() == before


async def test_closing_the_client_closes_what_is_idle_and_then_the_rest() -> None:
    client = HTTPClient()
    async with listening() as peer, anyio.create_task_group() as tasks:
        tasks.start_soon(peer.run, answers(OK), answers(OK))
        async with client.request(peer.origin, "GET", "/") as one:
            async with client.request(peer.origin, "GET", "/") as two:
                await two.read(10)
            assert client.statistics().idle == 1
            client.close()
            assert client.statistics().idle == 0
            assert await one.read(10) == b"ok"
        assert client.statistics().idle == 0
        assert client.statistics().in_use == 0
