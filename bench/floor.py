"""The floor: what a stream costs at least, in Python, with the same engine and the same timing.

A bare asyncio protocol that writes events encoded in advance. The engines and their owner threads
are the real ones; tokens come from them by ``call_soon_threadsafe``. There is no HTTP parser, no
request model, no text, no back-pressure and no cancellation.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from typing import TYPE_CHECKING, Final, Generic, TypeVar, cast

import orjson

from tilert_engine.worker import OwnerThread
from tilert_stream.events import Finished, Limits, Sampling
from tilert_stream.openai.chunks import ChunkTemplate
from tilert_stream.openai.encoding import dump_text
from tilert_stream.openai.envelope import Envelope

if TYPE_CHECKING:
    from collections.abc import Callable

    from tilert_stream.abc import DecodeEngine, PrefillEngine
    from tilert_stream.errors import EngineDied, EngineFault

    Generate = Callable[["FloorConnection", str, int], None]

__all__ = ("Floor", "FloorConnection")

RunT = TypeVar("RunT")
SequenceT = TypeVar("SequenceT")

HEAD: Final = (
    b"HTTP/1.1 200 \r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
OK: Final = b'HTTP/1.1 200 \r\ncontent-length: 15\r\n\r\n{"status":"ok"}'
CONTENT_LENGTH: Final = re.compile(rb"content-length: (\d+)")
GREEDY: Final = Sampling(temperature=0)


class Frames:
    """The bytes of every event, for any number of tokens, made once."""

    def __init__(self) -> None:
        self._template = ChunkTemplate(Envelope("0" * 32, "chat", "echo", stream=True))
        self._tokens: dict[int, bytes] = {}
        self.first = HEAD + _chunk(self._event(self._template.first_head, 1))

    def tokens(self, count: int) -> bytes:
        """One event with ``count`` tokens."""
        framed = self._tokens.get(count)
        if framed is None:
            framed = self._tokens[count] = _chunk(self._event(self._template.text_head, count))
        return framed

    def last(self, count: int) -> bytes:
        """The last tokens and the end, in one."""
        end = b"data: " + self._template.finish(Finished("length")) + b"}\n\ndata: [DONE]\n\n"
        return _chunk(self._event(self._template.text_head, count) + end) + b"0\r\n\r\n"

    def _event(self, head: bytes, count: int) -> bytes:
        return b"data: " + head + dump_text("x" * count) + self._template.text_tail + b"}\n\n"


def _chunk(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(body), body)


class Floor(Generic[RunT, SequenceT]):
    """The engines' threads, and what all connections share. Made in a running event loop."""

    def __init__(self, prefill: PrefillEngine[RunT], decode: DecodeEngine[SequenceT]) -> None:
        self.loop = asyncio.get_running_loop()
        self.frames = Frames()
        self.decode = decode
        self.slots = list(range(decode.slots))
        self._prefill = prefill
        self._prefill_thread = OwnerThread("floor-prefill")
        self._prefill_thread.start(_die)
        self._decode_thread = OwnerThread("floor-decode")
        self._decode_thread.start(_die)

    def connection(self) -> FloorConnection:
        """The protocol of one connection."""
        return FloorConnection(self._generate)

    def _generate(self, connection: FloorConnection, prompt: str, max_tokens: int) -> None:
        """Prefill on one thread, decode on the other, as the real server does."""
        self._prefill_thread.call(lambda: self._run(connection, prompt, Limits(max_tokens)))

    def _run(self, connection: FloorConnection, prompt: str, limits: Limits) -> None:
        run = self._prefill.open(tuple(prompt.encode()), limits, GREEDY)
        result = self._prefill.advance(run)
        if result is None:
            raise RuntimeError("the floor's prompts are one chunk long")
        self.loop.call_soon_threadsafe(connection.write, self.frames.first)
        job = _Job(self, connection, result.kv, result.first.ids[0], limits)
        self._decode_thread.open(job)
        self._decode_thread.begin(job)


class _Job(Generic[SequenceT]):
    """One stream in the decode engine's turns."""

    def __init__(
        self,
        floor: Floor[RunT, SequenceT],
        connection: FloorConnection,
        kv: object,
        first_token: int,
        limits: Limits,
    ) -> None:
        self._engine = floor.decode
        self._slots = floor.slots
        self._slot = floor.slots.pop()
        self._frames = floor.frames
        self._wake = floor.loop.call_soon_threadsafe
        self._connection = connection
        self._start = (kv, first_token, limits, GREEDY)

    def open(self) -> None:
        self._sequence = self._engine.open(self._slot, *self._start)

    def turn(self) -> bool:
        harvest = self._engine.advance(self._sequence)
        last = harvest.finished is not None
        make = self._frames.last if last else self._frames.tokens
        if harvest.batch.ids:
            self._wake(self._connection.write, make(len(harvest.batch.ids)))
        return not (last or self._connection.gone)

    def close(self) -> None:
        self._engine.close(self._sequence)
        self._slots.append(self._slot)

    def fail(self, error: EngineFault | EngineDied) -> None:
        raise error


def _die(error: EngineDied) -> None:
    sys.stderr.write(f"the floor's engine died: {error.__cause__!r}\n")
    os._exit(70)


class FloorConnection(asyncio.Protocol):
    """One connection: requests in, one after another, events out."""

    def __init__(self, generate: Generate) -> None:
        self.gone = False
        self._generate = generate
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods of asyncio's, and are no subclasses.
        self._transport = cast("asyncio.Transport", transport)

    def write(self, data: bytes) -> None:
        """Hand ``data`` to the transport, or drop it when the client has gone."""
        if not self.gone:
            self._transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone = True

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, end, body = self._received.partition(b"\r\n\r\n")
        if not end:
            return
        length = CONTENT_LENGTH.search(head)
        if length is None:
            self._received = b""
            self.write(OK)
        elif len(body) == int(length[1]):
            self._received = b""
            request = orjson.loads(body)
            self._generate(self, request["messages"][0]["content"], request["max_tokens"])
