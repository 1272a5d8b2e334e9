"""The load generator's side of a connection: it notes when bytes came, and looks at them later.

In: a request. Out: ``Recording``, and from it ``Answer``: each token's moment of arrival, the
end's, and the chunks. While streams run a read costs one call; parsing comes when they have ended.
"""

from __future__ import annotations

import asyncio
import re
import socket
import time
from bisect import bisect_left
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, cast

import orjson

from .script import prompt_of

__all__ = ("CONTENT", "DONE", "HEALTH", "Answer", "Client", "Recording")

CONTENT: Final = re.compile(
    rb'(?:"reasoning_content":"[^"]*",(?="reasoning":))?'
    rb'"(?:content|reasoning|reasoning_content)":"([^"]*)"'
)
"""A delta's text, whichever its channel: a token of reasoning is one, and is told once even where
it goes by two names."""
CHUNK: Final = re.compile(rb"\r\n[0-9a-fA-F]+\r\ndata: ")
HEALTH: Final = b"GET /health HTTP/1.1\r\nhost: bench\r\n\r\n"
DONE: Final = b"data: [DONE]\n\n"
ENDINGS: Final = (DONE, b"0\r\n\r\n", b'"ok"}')
"""The last bytes of a stream with a Content-Length, of one in chunks, and of ``/health``."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer, by its moments in nanoseconds of ``CLOCK_MONOTONIC``."""

    stream: int
    asked: int
    tokens: list[int]
    """When each token had arrived."""
    done: int
    """When ``[DONE]`` had; 0 if it has not."""
    chunks: int
    """HTTP chunks with events in them."""


@dataclass(frozen=True, slots=True)
class Recording:
    """What was read of one answer, and when."""

    stream: int
    asked: int
    reads: list[tuple[int, bytes]]

    def parse(self) -> Answer:
        """Find the tokens.

        :raises RuntimeError: the request was refused.
        """
        data = b"".join(read for _, read in self.reads)
        if data and not data.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"stream {self.stream} was refused: {data[:400]!r}")
        ends = list(accumulate(len(read) for _, read in self.reads))

        def arrival(end: int) -> int:
            return self.reads[bisect_left(ends, end)][0]

        tokens = [
            moment
            for event in CONTENT.finditer(data)
            for moment in [arrival(event.end())] * len(event[1])
        ]
        found = data.find(DONE)
        done = arrival(found + len(DONE)) if found >= 0 else 0
        return Answer(self.stream, self.asked, tokens, done, len(CHUNK.findall(data)))


def request_bytes(stream: int, max_tokens: int) -> bytes:
    """A streamed chat request."""
    body = orjson.dumps(
        {
            "model": "echo",
            "messages": [{"role": "user", "content": prompt_of(stream)}],
            "max_tokens": max_tokens,
            "stream": True,
        }
    )
    head = (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\n"
        b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
    )
    return head + body


class Client(asyncio.Protocol):
    """One connection of the load generator, kept alive from request to request."""

    def __init__(self) -> None:
        self._reads: list[tuple[int, bytes]] = []
        self._stream = self._asked = 0
        self._loop = asyncio.get_running_loop()
        self.first = self._loop.create_future()
        """Set when bytes of the present answer have come."""
        self.over = self._loop.create_future()
        """Set when the present answer has ended."""

    @classmethod
    async def connect(cls, port: int, *, receive_buffer: int | None = None) -> Client:
        """Open a connection.

        :param receive_buffer: bytes that the kernel may hold for a client that does not read.
        """
        loop = asyncio.get_running_loop()
        sock = socket.socket()
        sock.settimeout(0)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        await loop.sock_connect(sock, ("127.0.0.1", port))
        _, client = await loop.create_connection(cls, sock=sock)
        return client

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods of asyncio's, and are no subclasses.
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._reads.append((time.monotonic_ns(), data))
        if not self.first.done():
            self.first.set_result(None)
        if data.endswith(ENDINGS) and not self.over.done():
            self.over.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        error = ConnectionResetError(f"the server closed stream {self._stream}: {exc}")
        for waited in (self.first, self.over):
            if not waited.done():
                waited.set_exception(error)
                waited.exception()  # nobody need have waited

    def ask(self, stream: int, max_tokens: int) -> None:
        """Ask for an answer; ``first`` and ``over`` tell how far it is."""
        self._stream = stream
        self.send(request_bytes(stream, max_tokens))

    def send(self, request: bytes) -> None:
        """Send any request."""
        self._reads = []
        self.first, self.over = self._loop.create_future(), self._loop.create_future()
        self._asked = time.monotonic_ns()
        self.transport.write(request)

    def recording(self) -> Recording:
        """What has come of the present answer."""
        return Recording(self._stream, self._asked, self._reads)
