"""Mocked nodes, a process of their own: prefill that answers after a time, decode at a known pace.

    python -m bench.pd.nodes BOARD

In: requests, and the pace from the board. Out: three ports, one line: **prefill** (vLLM's
completions, an answer of one token), **decode** (TileRT's wire with reservations, and OpenAI's, in
which the first token leaves at once), **whole** (OpenAI's, prefill's time included). A bare asyncio
protocol on uvloop that writes what was encoded in advance; a token's moment is noted before it is
written. The end of standard input ends the process.
"""

from __future__ import annotations

import asyncio
import gc
import random
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson
import uvloop

from bench.board import TOKENS, Board, place

from .frames import EventFrames, LineFrames, json_answer
from .orders import EMITTED, ITL_NS, LEFT, PREFILL_NS, letter
from .requests import RequestProtocol
from .timer import Timer

if TYPE_CHECKING:
    from collections.abc import Callable

    from .frames import Frames

__all__ = ("Mocks", "NodeConnection")

BACKLOG: Final = 2048
SLOTS: Final = 4096
ONE_SHOT: Final = {"id": "cmpl-0", "object": "text_completion", "created": 0, "model": "echo"}
ABOUT: Final = json_answer(
    {
        "status": "ok",
        "data": [{"id": "echo", "object": "model"}],
        "model_path": "echo",
        "served_model_name": "echo",
        "dp_size": 1,
    }
)
"""What routers read when they look whether a node is there, and what it serves."""


class Mocks:
    """What all connections share."""

    def __init__(self, board: Board) -> None:
        self.loop = asyncio.get_running_loop()
        self._timer = Timer(self.loop)
        self.cells = board.cells
        self.events = EventFrames()
        self.lines = LineFrames()
        self.numbers: dict[str, int] = {}
        """Which stream a request that has been prefilled is."""
        self.decoding: dict[str, TokenStream] = {}
        self.generation = 0

    def later(self, nanoseconds: int, call: Callable[[], None]) -> None:
        """Call after a time, or in the loop's next turn."""
        if nanoseconds:
            self._timer.at(time.monotonic_ns() + nanoseconds, call)
        else:
            self.loop.call_soon(call)


class TokenStream:
    """One answer's tokens."""

    def __init__(
        self, mocks: Mocks, write: Callable[[bytes], None], frames: Frames, number: int, count: int
    ) -> None:
        self._mocks = mocks
        self._write = write
        self._frames = frames
        self._number = number
        self._last = count - 1
        self._index = 0
        # Streams that begin together would else make their tokens in the same moment for ever.
        self._noise = random.Random(number)
        self.over = False

    def turn(self) -> None:
        """Make a token, and plan the next."""
        if self.over:
            return
        index, cells = self._index, self._mocks.cells
        self._index = index + 1
        if index < TOKENS:
            cells[place(self._number, index)] = time.monotonic_ns()
        cells[EMITTED] += 1
        if index == self._last:
            self.over = True
            self._write(self._frames.last(index))
            return
        self._write(self._frames.token(index) if index else self._frames.first())
        self._mocks.later(round(cells[ITL_NS] * self._noise.uniform(0.5, 1.5)), self.turn)

    def leave(self) -> None:
        """Note that its reader has gone."""
        if not self.over:
            self.over = True
            self._mocks.cells[LEFT] = time.monotonic_ns()


class NodeConnection(RequestProtocol):
    """One connection to a node of any role."""

    def __init__(self, mocks: Mocks, role: str) -> None:
        super().__init__()
        self._mocks = mocks
        self._role = role
        self._stream: TokenStream | None = None

    def requested(self, target: str, body: bytes) -> None:
        if not body:
            self.write(ABOUT)
            return
        fields: dict[str, Any] = orjson.loads(body)
        if target.startswith("/pd/"):
            self._tilert(target, fields)
        elif self._role == "prefill":
            self._mocks.later(self._mocks.cells[PREFILL_NS], lambda: self._prefill(fields))
        else:
            number = _number(fields)
            stream = self._begin(self._mocks.events, number, _count(fields))
            delay = self._mocks.cells[PREFILL_NS] if self._role == "whole" else 0
            if delay:
                self._mocks.later(delay, stream.turn)
            else:
                stream.turn()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._stream is not None:
            self._stream.leave()

    def _begin(self, frames: Frames, number: int, count: int) -> TokenStream:
        self._stream = TokenStream(self._mocks, self.write, frames, number, count)
        return self._stream

    def _prefill(self, fields: dict[str, Any]) -> None:
        first = letter(0)
        ids: list[int] = fields.get("prompt") or []
        if "request_id" in fields and ids:
            self._mocks.numbers[fields["request_id"]] = int(bytes(ids))
        choice: dict[str, object] = {"index": 0, "finish_reason": "length"}
        if "messages" in fields:
            choice["message"] = {"role": "assistant", "content": first}
        else:
            choice |= {"text": first, "token_ids": [ord(first)]}
        usage = {"prompt_tokens": len(ids), "completion_tokens": 1, "total_tokens": len(ids) + 1}
        self.write(json_answer(ONE_SHOT | {"choices": [choice], "usage": usage}))

    def _tilert(self, target: str, fields: dict[str, Any]) -> None:
        mocks, rid = self._mocks, fields["rid"]
        if target == "/pd/decode":
            stream = self._begin(mocks.lines, mocks.numbers.pop(rid), fields["max_tokens"])
            mocks.decoding[rid] = stream
            stream.turn()
            return
        if target == "/pd/cancel":
            stream_of = mocks.decoding.pop(rid, None)
            if stream_of is not None:
                stream_of.leave()
        mocks.generation += 1
        generation = fields.get("generation") or mocks.generation
        grant = {"rid": rid, "incarnation": "mock", "generation": generation, "region": 0}
        self.write(json_answer(grant | {"ttl": 30.0, "slots": SLOTS}))


def _number(fields: dict[str, Any]) -> int:
    """The stream that a chat is about."""
    return int(fields["messages"][0]["content"])


def _count(fields: dict[str, Any]) -> int:
    """How many tokens are asked for; some routers write the newer name of it."""
    return int(fields.get("max_tokens") or fields["max_completion_tokens"])


async def serve(board: Board) -> None:
    """Listen for every role until the process ends."""
    mocks = Mocks(board)
    ports: list[int] = []
    for role in ("prefill", "decode", "whole"):
        make = partial(NodeConnection, mocks, role)
        server = await mocks.loop.create_server(make, "127.0.0.1", 0, backlog=BACKLOG)
        ports.append(server.sockets[0].getsockname()[1])
    gc.collect()
    gc.freeze()
    print(*ports, flush=True)
    ended = asyncio.Event()
    mocks.loop.add_reader(sys.stdin.fileno(), ended.set)
    await ended.wait()


if __name__ == "__main__":
    uvloop.run(serve(Board(Path(sys.argv[1]))))
