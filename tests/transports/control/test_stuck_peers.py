"""A prefill node beside a decode node, or a transport, that stops answering at the worst moment."""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import anyio
import pytest
from anyio.abc import SocketStream

from tilert_transports.control.client import ControlClient
from tilert_transports.control.errors import PeerLost
from tilert_transports.control.frames import FrameReader, JSONObject, encode_frame
from tilert_transports.control.handshake import DecodeHandshake
from tilert_transports.control.listener import bind
from tilert_transports.control.messages import Claim, Grant, to_json

from .endpoints import PATIENT, Memory, connected, jumping, next_one_is_served, serving
from .ledger import claim_of
from .nodes import DECODE, PREFILL

CLAIM = Claim("a1", "d-1", 1, 0, 900, 4096, 42)
GRANT = Grant("a1", 1, 0, 7, 0, 1 << 20, 30.0)


class MuteDecode:
    """Says ``grant``, if it is to, and nothing from then on; ``heard`` the last type it reads."""

    def __init__(self, *, grants: bool, hears: str) -> None:
        self.grants = grants
        self.hears = hears
        self.reached = anyio.Event()

    async def run(self, listener: socket.socket) -> None:
        await anyio.wait_readable(listener)
        sock, _ = listener.accept()
        sock.settimeout(0)
        async with await SocketStream.from_socket(sock) as stream:
            handshake = DecodeHandshake(DECODE)
            await stream.send(encode_frame(handshake.open()))
            reader = FrameReader()
            # Until the client hangs up, in whichever way.
            with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                while True:
                    for content in reader.feed(await stream.receive()):
                        await self.answer(stream, handshake, content)

    async def answer(
        self, stream: SocketStream, handshake: DecodeHandshake, content: JSONObject
    ) -> None:
        if handshake.peer is None:
            await stream.send(encode_frame(handshake.receive(content)))
        elif content["type"] == "claim" and self.grants:
            await stream.send(encode_frame(to_json(GRANT)))
        if content["type"] == self.hears:
            self.reached.set()


@asynccontextmanager
async def beside(decode: MuteDecode) -> AsyncGenerator[ControlClient]:
    (listener,) = await bind("127.0.0.1", 0)
    port = listener.getsockname()[1]
    client = ControlClient("127.0.0.1", port, PREFILL, settings=PATIENT)
    with listener:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(decode.run, listener)
            await tasks.start(client.run)
            yield client
            tasks.cancel_scope.cancel()


@pytest.mark.parametrize(("grants", "hears"), [(False, "claim"), (True, "commit")])
async def test_cancelling_where_no_write_is_under_way_drains_nothing(
    grants: bool, hears: str
) -> None:
    memory, decode = Memory(), MuteDecode(grants=grants, hears=hears)
    async with beside(decode) as client:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.hand_off, CLAIM, memory.write, memory.drain)
            await decode.reached.wait()
            tasks.cancel_scope.cancel()
        assert memory.drained == 0
        assert client.is_open


@jumping
@pytest.mark.parametrize(("grants", "hears"), [(False, "claim"), (True, "commit")])
async def test_a_decode_node_that_falls_silent_is_lost(grants: bool, hears: str) -> None:
    memory, decode = Memory(), MuteDecode(grants=grants, hears=hears)
    async with beside(decode) as client:
        with pytest.raises(PeerLost, match="has gone before request a1 was handed over"):
            await client.hand_off(CLAIM, memory.write, memory.drain)
        assert decode.reached.is_set()
        assert not client.is_open
        with pytest.raises(PeerLost, match="was silent for"):
            await client.hand_off(replace(CLAIM, generation=2), memory.write, memory.drain)


async def test_a_transport_that_never_drains_holds_nobody_up_and_keeps_the_region() -> None:
    memory = Memory()
    settings = replace(PATIENT, drain_timeout=0.05)

    async def drain() -> bool:
        memory.drained += 1
        await anyio.sleep_forever()
        return True

    async with serving() as decode, connected(decode, settings=settings) as client:
        landing = decode.server.reserve("a1", 1000)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.hand_off, claim_of(landing.granted), memory.write_slowly, drain)
            await memory.started.wait()
            tasks.cancel_scope.cancel()
        assert memory.drained == 1
        await next_one_is_served(decode, client, quarantined=1)
