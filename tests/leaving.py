"""Leaving a server: the places where a request can stand, and a client on a bare socket.

For each phase of a request there is a place to be stuck in. A test lets a request come there, has
its client leave, and opens the place when all that it wants to see has happened.
"""

from __future__ import annotations

import socket
import struct
from contextlib import ExitStack
from typing import Any, Literal

import anyio
import orjson

from tilert_engine.scripted import Script
from tilert_stream.abc import Receive, Send
from tilert_stream.events import Prefilled, Reserved, TextDelta
from tilert_stream.scope import RequestScope
from tilert_stream.testing import Gate
from tilert_stream.testing.apps import ScriptedApp

MAX_TOKENS = 40
How = Literal["fin", "rst"]


class Stand:
    """A place in the pipeline where requests stand until it is opened."""

    def __init__(self) -> None:
        self.close()

    def close(self) -> None:
        self.reached = anyio.Event()
        self.opened = False

    async def arrival(self) -> None:
        await self.reached.wait()

    def open(self) -> None:
        self.opened = True

    async def stand(self) -> None:
        self.reached.set()
        if not self.opened:
            await anyio.sleep_forever()


class AfterReserve(Stand):
    """Accepted, and nothing begun."""

    async def call(self, item: Reserved, _scope: RequestScope) -> Reserved:
        await self.stand()
        return item


class BetweenLegs(Stand):
    """The first token has left, the KV cache has not begun to travel."""

    async def call(self, item: Prefilled, _scope: RequestScope) -> Prefilled:
        await self.stand()
        return item


class AfterLastToken(Stand):
    """The engine is done; the end of the answer is held up."""

    async def run(self, receive: Receive[TextDelta], send: Send[TextDelta]) -> None:
        async for item in receive:
            await send(item)
        await self.stand()


class InEngine:
    """The engine's thread stands before turn ``number`` of ``hook``, for as long as it is told."""

    def __init__(self, hook: str, number: int, gates: ExitStack) -> None:
        self._gates = gates
        self.close()

        def stand(turn: int) -> None:
            if turn == number:
                self._gate.pass_through(turn)

        hooks: dict[str, Any] = {hook: stand}
        self.script = Script(chunks=2, **hooks)

    def close(self) -> None:
        self._gate = self._gates.enter_context(Gate())

    async def arrival(self) -> None:
        await self._gate.arrival()

    def open(self) -> None:
        self._gate.open()


ENGINE = {
    "prefilling": ("before_chunk", 0),
    "before the first token": ("before_chunk", 1),
    "importing": ("before_import", 0),
    "streaming": ("before_chain", 5),
    "before the last token": ("before_chain", MAX_TOKENS - 2),
}
STAGES: dict[str, tuple[type[Stand], str]] = {
    "reserved": (AfterReserve, "reserve"),
    "between legs": (BetweenLegs, "prefill"),
    "finishing": (AfterLastToken, "detokenize"),
}
SENT_BY_THEN = ("importing", "streaming", "before the last token", "between legs", "finishing")
"""Phases by which the first token of a stream has left."""


def app_that_stands_in(phase: str, gates: ExitStack) -> tuple[InEngine | Stand, ScriptedApp]:
    """An app with one slot, whose requests stand in ``phase``; and the place where they do.

    :param gates: entered inside of what runs the app. It is not left before the engine's thread has
        come to its end, so that a test that fails must open them first.
    """
    if phase in ENGINE:
        place = InEngine(*ENGINE[phase], gates)
        return place, ScriptedApp(place.script, slots=1)
    stage, anchor = STAGES[phase]
    stand = stage()
    app = ScriptedApp(slots=1)
    app.service.pipeline = app.service.pipeline.insert(stand, where="after", anchor=anchor)
    return stand, app


class Client:
    """A bare socket.

    :param receive_buffer: bytes that the system takes for it while it reads nothing.
    """

    def __init__(self, port: int, *, receive_buffer: int | None = None) -> None:
        self._sock = socket.create_connection(("127.0.0.1", port))
        self._sock.setblocking(False)
        if receive_buffer is not None:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)

    def get(self, path: str) -> None:
        head = f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
        self._sock.send(head.encode())

    def post(
        self,
        *,
        stream: bool,
        prompt: str = "the quick",
        prefix: str = "",
        version: str = "1.1",
        headers: tuple[str, ...] = ("connection: close",),
        max_tokens: int = MAX_TOKENS,
    ) -> None:
        body = orjson.dumps({"prompt": prompt, "max_tokens": max_tokens, "stream": stream})
        head = (
            f"POST {prefix}/v1/completions HTTP/{version}",
            "host: x",
            "content-type: application/json",
            f"content-length: {len(body)}",
            *headers,
        )
        self._sock.send("\r\n".join((*head, "", "")).encode() + body)

    async def read(self) -> bytes:
        await anyio.wait_readable(self._sock)
        return self._sock.recv(65536)

    async def until(self, mark: bytes) -> bytes:
        """Read on, up to where the answer has ``mark`` in it."""
        answer = b""
        while mark not in answer:
            data = await self.read()
            assert data, f"the end came before {mark!r}, behind {answer!r}"
            answer += data
        return answer

    async def read_all(self) -> bytes:
        answer = b""
        while data := await self.read():
            answer += data
        return answer

    def end_output(self) -> None:
        """Say that nothing more will be sent; go on reading."""
        self._sock.shutdown(socket.SHUT_WR)

    def leave(self, how: How = "fin") -> None:
        """Close the connection, if that has not been done."""
        if self._sock.fileno() < 0:
            return
        if how == "rst":
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        anyio.notify_closing(self._sock)
        self._sock.close()
