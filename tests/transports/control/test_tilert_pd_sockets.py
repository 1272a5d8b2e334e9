"""Both roles of TileRT's dialect over real sockets."""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace

import anyio
import pytest

from tilert_stream.errors import Busy
from tilert_transports.control.errors import FrameError, HandOffFailed, HandshakeRefused, PeerLost
from tilert_transports.control.listener import bind
from tilert_transports.control.regions import LandingRegion, RegionPool
from tilert_transports.control.tilert_pd import TilertHello
from tilert_transports.control.tilert_pd_prefill import TilertSender, hand_off
from tilert_transports.control.tilert_pd_server import TilertServer

from .ledger import make_regions
from .tilert_recorded import (
    BUSY_BYTES,
    DONE_BYTES,
    NIXL_HELLO,
    NIXL_HELLO_BYTES,
    REQUEST,
    REQUEST_BYTES,
    TOO_LONG_BYTES,
)


class Memory:
    def __init__(self) -> None:
        self.written: list[TilertHello] = []
        self.drained = 0
        self.started = anyio.Event()

    async def write(self, hello: TilertHello) -> None:
        self.written.append(hello)

    async def write_for_ever(self, hello: TilertHello) -> None:
        self.started.set()
        await anyio.sleep_forever()

    async def drain(self) -> bool:
        self.drained += 1
        return True


def sender() -> TilertSender:
    return TilertSender(REQUEST, 10, "nixl")


def hello(region: LandingRegion) -> TilertHello:
    return replace(NIXL_HELLO, bases={"kv_base": 4096 + region.offset})


@asynccontextmanager
async def serving() -> AsyncGenerator[tuple[TilertServer, int]]:
    (listener,) = await bind("127.0.0.1", 0)
    pool = RegionPool(make_regions(3), slots=1)
    server = TilertServer(pool, hello, incarnation="d-1", max_seq_len=8192)
    async with anyio.create_task_group() as tasks:
        await tasks.start(server.serve, [listener])
        yield server, listener.getsockname()[1]
        tasks.cancel_scope.cancel()


async def test_our_two_sides_understand_each_other() -> None:
    memory = Memory()
    async with serving() as (server, port):
        for generation in (1, 2, 3, 4):
            await hand_off("127.0.0.1", port, sender(), memory.write, memory.drain)
            arrival = await server.inbox.receive("5f0c")
            assert arrival.request == REQUEST
            assert arrival.landing.take().generation == generation
            arrival.landing.release("imported")
        assert server.inbox.reservations.statistics().free == 3
    assert [h.bases["kv_base"] for h in memory.written] == [
        4096,
        4096 + (1 << 20),
        4096 + (2 << 20),
        4096,
    ]
    assert memory.drained == 0


async def test_a_port_scan_disturbs_nobody() -> None:
    memory = Memory()
    async with serving() as (server, port):
        for _ in range(5):
            async with await anyio.connect_tcp("127.0.0.1", port) as stranger:
                await stranger.receive()
                await stranger.send_eof()
                with pytest.raises(anyio.EndOfStream):
                    await stranger.receive()
        await hand_off("127.0.0.1", port, sender(), memory.write, memory.drain)
        await server.inbox.receive("5f0c")
        assert server.inbox.reservations.statistics().quarantined == 0


# --- our prefill side, and a TileRT decode server that follows a script --------------------------


@asynccontextmanager
async def scripted(script: Script) -> AsyncGenerator[int]:
    (listener,) = await bind("127.0.0.1", 0)

    async def serve() -> None:
        await anyio.wait_readable(listener)
        sock, _ = listener.accept()
        sock.settimeout(0)
        async with await anyio.abc.SocketStream.from_socket(sock) as stream:
            await script.run(stream)

    with listener:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(serve)
            yield listener.getsockname()[1]
            tasks.cancel_scope.cancel()


class Script:
    """Says ``first``, reads a request, says ``then``; notes all that it reads."""

    def __init__(self, first: bytes, then: bytes = b"", *, hang_up: bool = False) -> None:
        self.first = first
        self.then = then
        self.hang_up = hang_up
        self.heard = b""
        self.may_answer = anyio.Event()
        self.may_answer.set()
        self.over = anyio.Event()

    async def run(self, stream: anyio.abc.SocketStream) -> None:
        await stream.send(self.first)
        try:
            while len(self.heard) < len(REQUEST_BYTES):
                self.heard += await stream.receive()
            await self.may_answer.wait()
            if self.then:
                await stream.send(self.then)
            while not self.hang_up:
                self.heard += await stream.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            self.over.set()


async def test_the_bytes_that_a_tilert_decode_server_reads() -> None:
    memory, script = Memory(), Script(NIXL_HELLO_BYTES)
    async with scripted(script) as port:
        await hand_off("127.0.0.1", port, sender(), memory.write, memory.drain)
        await script.over.wait()
    assert script.heard == REQUEST_BYTES + DONE_BYTES
    assert memory.written == [NIXL_HELLO]


@pytest.mark.parametrize(("answer", "error"), [(BUSY_BYTES, Busy), (TOO_LONG_BYTES, HandOffFailed)])
async def test_a_refusal_in_time_keeps_it_from_writing(
    answer: bytes, error: type[Exception]
) -> None:
    memory, script = Memory(), Script(NIXL_HELLO_BYTES, answer)
    async with scripted(script) as port:
        with pytest.raises(error):
            await hand_off("127.0.0.1", port, sender(), memory.write, memory.drain, refusal_time=30)
        await script.over.wait()
    assert memory.written == []
    assert script.heard == REQUEST_BYTES


@pytest.mark.parametrize(
    ("answer", "error"),
    [(BUSY_BYTES, Busy), (b"\xff" * 8, FrameError), (b"", PeerLost)],
    ids=["busy", "garbage", "gone"],
)
async def test_a_late_refusal_or_end_stops_the_writes_and_no_done_leaves(
    answer: bytes, error: type[Exception]
) -> None:
    memory, server = Memory(), Script(NIXL_HELLO_BYTES, answer, hang_up=not answer)
    server.may_answer = anyio.Event()
    async with scripted(server) as port, anyio.create_task_group() as tasks:

        async def let_it_answer() -> None:
            await memory.started.wait()
            server.may_answer.set()

        tasks.start_soon(let_it_answer)
        with pytest.raises(error):
            await hand_off(
                "127.0.0.1", port, sender(), memory.write_for_ever, memory.drain, refusal_time=0
            )
    assert memory.drained == 1
    assert DONE_BYTES not in server.heard


async def test_a_write_that_fails_is_raised_as_it_is_and_no_done_leaves() -> None:
    memory, script = Memory(), Script(NIXL_HELLO_BYTES)

    async def write(_: TilertHello) -> None:
        raise ZeroDivisionError

    async with scripted(script) as port:
        with pytest.raises(ZeroDivisionError):
            await hand_off("127.0.0.1", port, sender(), write, memory.drain)
        await script.over.wait()
    assert script.heard == REQUEST_BYTES
    assert memory.drained == 1


async def test_cancelling_drains() -> None:
    memory, script = Memory(), Script(NIXL_HELLO_BYTES)
    async with scripted(script) as port:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(
                hand_off, "127.0.0.1", port, sender(), memory.write_for_ever, memory.drain
            )
            await memory.started.wait()
            tasks.cancel_scope.cancel()
        assert memory.drained == 1
        await script.over.wait()
    assert script.heard == REQUEST_BYTES


async def test_a_server_that_does_not_fit_reads_nothing() -> None:
    memory = Memory()
    script = Script(NIXL_HELLO_BYTES)
    async with scripted(script) as port:
        with pytest.raises(HandshakeRefused, match="layout_version"):
            await hand_off(
                "127.0.0.1", port, TilertSender(REQUEST, 51, "nixl"), memory.write, memory.drain
            )
        await script.over.wait()
    assert script.heard == b""
    assert memory.drained == 0


async def test_a_server_that_never_says_hello() -> None:
    memory, script = Memory(), Script(b"")
    async with scripted(script) as port:
        with pytest.raises(PeerLost, match=r"no hello within 0\.05 s"):
            await hand_off(
                "127.0.0.1", port, sender(), memory.write, memory.drain, connect_timeout=0.05
            )


async def test_nobody_answers() -> None:
    memory = Memory()
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    with pytest.raises(PeerLost, match=f"no TileRT decode node answers at 127.0.0.1 port {port}"):
        await hand_off("127.0.0.1", port, sender(), memory.write, memory.drain)
