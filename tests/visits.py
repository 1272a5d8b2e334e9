"""Clients that come, and leave at random: where in the answer, and how, is drawn before."""

from __future__ import annotations

import random
import socket
import struct
from contextlib import aclosing
from dataclasses import dataclass

import anyio
import orjson

from tilert_stream.events import GenerateRequest, Limits
from tilert_stream.testing.apps import ScriptedApp

PROMPT = "the quick brown fox"
AT_ONCE = 8
"""Clients that are there at the same time."""


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


async def crowd(port: int, app: ScriptedApp, count: int) -> None:
    """So many visits, ``AT_ONCE`` beside each other; the same ones for the same count."""
    chance = random.Random(count)
    visits = iter([Visit.random(chance) for _ in range(count)])

    async def one_after_another() -> None:
        for visit in visits:
            await visit.make(port, app)

    async with anyio.create_task_group() as tasks:
        for _ in range(AT_ONCE):
            tasks.start_soon(one_after_another)


async def whole_answers(port: int, count: int) -> list[bytes]:
    """What clients read that stay to the end, all at once."""
    answers: list[bytes] = []

    async def stay() -> None:
        async with await anyio.connect_tcp("127.0.0.1", port) as client:
            await client.send(_post(stream=True, max_tokens=500))
            answer = b""
            while data := await _receive(client):
                answer += data
        answers.append(answer)

    async with anyio.create_task_group() as tasks:
        for _ in range(count):
            tasks.start_soon(stay)
    return answers


async def _receive(client: anyio.abc.SocketStream) -> bytes:
    try:
        return await client.receive()
    except anyio.EndOfStream:
        return b""


def _post(stream: bool, max_tokens: int) -> bytes:
    body = orjson.dumps({"prompt": PROMPT, "max_tokens": max_tokens, "stream": stream})
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n"
    return head.encode() + b"connection: close\r\n\r\n" + body
