"""The serving side of a mocked connection: bytes in, one request after another out."""

from __future__ import annotations

import asyncio
import re
from typing import Final, cast

__all__ = ("RequestProtocol",)

CONTENT_LENGTH: Final = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


class RequestProtocol(asyncio.Protocol):
    """Takes requests apart as far as the benchmark's callers need it."""

    def __init__(self) -> None:
        self._received = b""
        self.gone = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods of asyncio's, and are no subclasses.
        self.transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone = True

    def write(self, data: bytes) -> None:
        """Hand ``data`` to the transport, or drop it when the caller has gone."""
        if not self.gone:
            self.transport.write(data)

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, end, body = self._received.partition(b"\r\n\r\n")
        if not end:
            return
        if head.startswith(b"PRI "):
            self.transport.abort()  # somebody looks whether HTTP/2 is spoken here
            return
        length = CONTENT_LENGTH.search(head)
        if length is not None and len(body) < int(length[1]):
            return
        self._received = b""
        self.requested(head.split(b" ", 2)[1].decode(), body if length else b"")

    def requested(self, target: str, body: bytes) -> None:
        """A whole request has come."""
        raise NotImplementedError
