"""Clients that leave at random, in every phase, every way: INV-1 and INV-2.

Two hundred of them in the ordinary run, two thousand in the soak, on each backend.
"""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass

import anyio
import orjson
import pytest

from tilert_engine.scripted import Script
from tilert_stream.asgi import App
from tilert_stream.events import GenerateRequest, Limits
from tilert_stream.testing.apps import ScriptedApp

Serve = Callable[[App], AbstractAsyncContextManager[int]]

SLOTS = 3
CLIENTS_AT_ONCE = 8
PROMPT = "the quick brown fox"


@dataclass(frozen=True)
class Visit:
    """One client: how long its answer would be, and where and how it leaves."""

    stream: bool
    max_tokens: int
    leave_after: int
    """Bytes of the answer; 0 leaves right after the request has been sent."""
    reset: bool
    in_process: bool
    """Through ``Service.stream``, without HTTP."""

    @classmethod
    def random(cls, chance: random.Random) -> Visit:
        return cls(
            stream=chance.random() < 0.7,
            max_tokens=chance.choice([1, 2, 5, 300, 3000]),
            leave_after=chance.choice([0, 0, 1, 200, 500, 5000, 50_000]),
            reset=chance.random() < 0.5,
            in_process=chance.random() < 0.2,
        )

    async def make(self, port: int, app: ScriptedApp) -> None:
        if self.in_process:
            await self._listen_in(app)
            return
        async with await anyio.connect_tcp("127.0.0.1", port) as client:
            await client.send(_post(self.stream, self.max_tokens))
            read = 0
            while read < self.leave_after and (data := await _receive(client)):
                read += len(data)
            if self.reset:
                raw: socket.socket = client.extra(anyio.abc.SocketAttribute.raw_socket)
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    async def _listen_in(self, app: ScriptedApp) -> None:
        request = GenerateRequest(
            id="0", prompt_ids=tuple(PROMPT.encode()), limits=Limits(self.max_tokens)
        )
        heard = 0
        async with aclosing(app.service.stream(request)) as deltas:
            async for delta in deltas:
                heard += len(delta.text)
                if heard * 100 >= self.leave_after:
                    break


async def _receive(client: anyio.abc.SocketStream) -> bytes:
    try:
        return await client.receive()
    except anyio.EndOfStream:
        return b""


def _post(stream: bool, max_tokens: int) -> bytes:
    body = orjson.dumps({"prompt": PROMPT, "max_tokens": max_tokens, "stream": stream})
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n"
    return head.encode() + b"connection: close\r\n\r\n" + body


async def _read_all(port: int, stream: bool) -> bytes:
    async with await anyio.connect_tcp("127.0.0.1", port) as client:
        await client.send(_post(stream, 500))
        answer = b""
        while data := await _receive(client):
            answer += data
        return answer


@pytest.mark.parametrize(
    "count", [200, pytest.param(2000, marks=pytest.mark.soak)], ids=["short", "soak"]
)
async def test_inv_2_random_disconnects(serve: Serve, count: int) -> None:
    chance = random.Random(count)
    visits = iter([Visit.random(chance) for _ in range(count)])
    app = ScriptedApp(Script(chunks=3, chain=lambda turn: 1 + turn % 3), slots=SLOTS)
    answers: list[bytes] = []

    async def visit_one_after_another(port: int) -> None:
        for visit in visits:
            await visit.make(port, app)

    async def stay(port: int) -> None:
        answers.append(await _read_all(port, stream=True))

    async with serve(app) as port:
        async with anyio.create_task_group() as tasks:
            for _ in range(CLIENTS_AT_ONCE):
                tasks.start_soon(visit_one_after_another, port)
        # Every slot still serves, to the last token.
        async with anyio.create_task_group() as tasks:
            for _ in range(SLOTS):
                tasks.start_soon(stay, port)
    # The server has drained: all that the requests held is back.
    assert len(answers) == SLOTS
    assert all(b"data: [DONE]" in answer for answer in answers)
    assert app.service.ledger.counts == {}
    assert app.decode_engine.busy == {}
