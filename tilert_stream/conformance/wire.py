"""A connection to the server: requests in, exchanges out, no byte changed on the way.

h11 reads the answers; what is sent is written as asked, so that a request may be one that no HTTP
library sends.
"""

from __future__ import annotations

import socket
import struct
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import anyio
import h11
from anyio.abc import SocketAttribute

from .exchange import Ending, Exchange, Read

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from anyio.abc import SocketStream
    from anyio.streams.tls import TLSStream

    from .exchange import Leave, Request
    from .settings import Settings
    from .target import Target

__all__ = ("Wire", "dial", "play")

READ: Final = 65536
_LINGER_OFF: Final = struct.pack("ii", 1, 0)


class Wire:
    """One connection. ``dial`` opens it; after a complete answer it may be used again."""

    def __init__(
        self, stream: SocketStream | TLSStream, target: Target, settings: Settings
    ) -> None:
        self._stream = stream
        self._target = target
        self._settings = settings
        self._parser = h11.Connection(h11.CLIENT)
        self._eof = False

    async def exchange(
        self, request: Request, leave: Leave | None = None, into: Exchange | None = None
    ) -> Exchange:
        """Send ``request`` and read its answer, to the end or until this client leaves.

        :param into: gets the answer as it comes, so that a part of it is there after a time-out.
        """
        exchange = Exchange(request) if into is None else into
        if self._parser.our_state is h11.DONE:
            self._parser.start_next_cycle()
        try:
            await self._send(request, leave)
            if leave is None or leave.after == "event":
                await self._receive(exchange, leave)
            else:
                exchange.ending = Ending.LEFT
        except (anyio.BrokenResourceError, OSError) as error:
            exchange.fault = f"{type(error).__name__} while it was read"
        except h11.RemoteProtocolError as error:
            exchange.ending = Ending.CUT if self._eof else Ending.MALFORMED
            exchange.fault = str(error)
        if leave is not None and leave.reset:
            self._reset()
        return exchange

    async def _send(self, request: Request, leave: Leave | None) -> None:
        half = leave is not None and leave.after == "half-body"
        body = request.body[: len(request.body) // 2] if half else request.body
        head = self._head(request)
        try:
            if request.trickle:
                await self._stream.send(head)
                for number in range(len(body)):
                    await self._stream.send(body[number : number + 1])
            else:
                await self._stream.send(head + body)
        except anyio.BrokenResourceError:
            return  # a server may refuse a body that it has not read: its answer is there to read

    def _head(self, request: Request) -> bytes:
        close = () if request.keep_alive or request.http10 else (("connection", "close"),)
        key = self._target.api_key
        given = {name for name, _ in request.headers}
        headers = [
            ("host", self._target.authority),
            ("content-length", str(len(request.body))),
            *(
                ()
                if key is None or "authorization" in given
                else [("authorization", f"Bearer {key}")]
            ),
            *(() if "content-type" in given else [("content-type", "application/json")]),
            *close,
            *request.headers,
        ]
        if request.method in ("GET", "HEAD", "OPTIONS"):
            headers = [pair for pair in headers if not pair[0].startswith("content-")]
        path = self._target.prefix + request.path
        # The parser only needs to know that a request is under way: it checks what it is told, and
        # here a header may be one that nobody should send.
        told = [("host", "server"), *close]
        self._parser.send(h11.Request(method=request.method, target="/", headers=told))
        self._parser.send(h11.EndOfMessage())
        version = "1.0" if request.http10 else "1.1"
        lines = [f"{request.method} {path} HTTP/{version}", *(f"{n}: {v}" for n, v in headers)]
        return "\r\n".join((*lines, "", "")).encode("latin-1")

    async def _receive(self, exchange: Exchange, leave: Leave | None) -> None:
        sent = anyio.current_time()
        while True:
            event = self._parser.next_event()
            if event is h11.NEED_DATA:
                data = await self._read()
                exchange.raw += data
                self._parser.receive_data(data)
                exchange.reads.append(Read(anyio.current_time() - sent, len(exchange.body)))
            elif isinstance(event, h11.Response):
                exchange.status = event.status_code
                exchange.headers = tuple(
                    (name.decode("latin-1"), value.decode("latin-1"))
                    for name, value in event.headers
                )
            elif isinstance(event, h11.Data):
                exchange.body += event.data
                exchange.reads[-1] = Read(exchange.reads[-1].at, len(exchange.body))
                if leave is not None and b"\n\n" in exchange.body:
                    exchange.ending = Ending.LEFT
                    return
                if len(exchange.body) > self._settings.answer_bytes:
                    exchange.ending = Ending.TOO_LONG
                    return
            elif isinstance(event, h11.EndOfMessage):
                exchange.ending = Ending.COMPLETE
                return
            elif isinstance(event, h11.ConnectionClosed):
                return

    async def _read(self) -> bytes:
        try:
            return await self._stream.receive(READ)
        except anyio.EndOfStream:
            self._eof = True
            return b""

    def _reset(self) -> None:
        raw: socket.socket = self._stream.extra(SocketAttribute.raw_socket)  # noqa: S610 - anyio's
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_OFF)


@asynccontextmanager
async def dial(target: Target, settings: Settings) -> AsyncGenerator[Wire]:
    """Open a connection.

    :raises OSError: nobody answers there.
    """
    context = target.tls_context()
    stream: SocketStream | TLSStream
    if context is None:
        stream = await anyio.connect_tcp(target.host, target.port)
    else:
        stream = await anyio.connect_tcp(
            target.host,
            target.port,
            tls=True,
            ssl_context=context,
            # Many servers end a TLS connection without saying so: that is no fault of the answer.
            tls_standard_compatible=False,
        )
    try:
        yield Wire(stream, target, settings)
    finally:
        await anyio.aclose_forcefully(stream)


async def play(
    target: Target, settings: Settings, request: Request, leave: Leave | None = None
) -> Exchange:
    """Send one request on a connection of its own, within the time limit."""
    exchange = Exchange(request)
    with anyio.move_on_after(settings.timeout) as scope:
        try:
            async with dial(target, settings) as wire:
                await wire.exchange(request, leave, exchange)
        except OSError as error:
            exchange.ending, exchange.fault = Ending.REFUSED, str(error)
    if scope.cancelled_caught:
        exchange.ending = Ending.TIMEOUT
    return exchange
