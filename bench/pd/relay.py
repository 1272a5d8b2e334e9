"""The floor of a router in Python: two hops on uvloop, bytes spliced.

    python -m bench.pd.relay PREFILL_PORT DECODE_PORT

A prefill call, then the decode node's bytes passed on as they come, head and chunks included, on
connections that are kept. It parses no answer, reserves nothing, detokenizes nothing, has no
back-pressure and no time limits. Out: the port, one line. The end of standard input ends it.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from typing import TYPE_CHECKING, Final, cast

import orjson
import uvloop

from .frames import END
from .requests import RequestProtocol

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ("Relay",)

BACKLOG: Final = 2048
POST: Final = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: node\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\n\r\n%b"
)


class Upstream(asyncio.Protocol):
    """A connection to a node, kept from request to request."""

    def __init__(self) -> None:
        self.receive: Callable[[bytes], None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self.receive is not None:
            self.receive(data)


class Relay:
    """Both nodes, and the idle connections to each."""

    def __init__(self, prefill: int, decode: int) -> None:
        self.prefill = prefill
        self.decode = decode
        self._idle: dict[int, list[Upstream]] = {prefill: [], decode: []}

    async def take(self, port: int) -> Upstream:
        """A connection, kept or new."""
        if self._idle[port]:
            return self._idle[port].pop()
        loop = asyncio.get_running_loop()
        _, upstream = await loop.create_connection(Upstream, "127.0.0.1", port)
        return upstream

    def keep(self, port: int, upstream: Upstream) -> None:
        """Take it back, unused now."""
        upstream.receive = None
        self._idle[port].append(upstream)

    async def prefilled(self, body: bytes) -> None:
        """Have the prompt computed; its answer is one read."""
        fields = orjson.loads(body) | {"max_tokens": 1, "stream": False}
        upstream = await self.take(self.prefill)
        answered = asyncio.get_running_loop().create_future()
        upstream.receive = answered.set_result
        sent = orjson.dumps(fields)
        upstream.transport.write(POST % (len(sent), sent))
        await answered
        self.keep(self.prefill, upstream)


class RelayConnection(RequestProtocol):
    """A client's connection."""

    def __init__(self, relay: Relay) -> None:
        super().__init__()
        self._relay = relay
        self._task: asyncio.Task[None] | None = None
        self._upstream: Upstream | None = None

    def requested(self, target: str, body: bytes) -> None:
        self._task = asyncio.get_running_loop().create_task(self._serve(body))

    async def _serve(self, body: bytes) -> None:
        await self._relay.prefilled(body)
        upstream = self._upstream = await self._relay.take(self._relay.decode)
        upstream.receive = self._pass_on
        upstream.transport.write(POST % (len(body), body))

    def _pass_on(self, data: bytes) -> None:
        self.write(data)
        if data.endswith(END) and self._upstream is not None:
            self._relay.keep(self._relay.decode, self._upstream)
            self._upstream = None

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._task is not None:
            self._task.cancel()
        if self._upstream is not None:
            self._upstream.transport.abort()


async def serve(prefill: int, decode: int) -> None:
    """Listen until the process ends."""
    relay = Relay(prefill, decode)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: RelayConnection(relay), "127.0.0.1", 0, backlog=BACKLOG
    )
    gc.collect()
    gc.freeze()
    print(server.sockets[0].getsockname()[1], flush=True)
    ended = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), ended.set)
    await ended.wait()


if __name__ == "__main__":
    uvloop.run(serve(*map(int, sys.argv[1:])))
