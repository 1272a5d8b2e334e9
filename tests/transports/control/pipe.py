"""Two joined byte streams in memory, so that time can be a test's own."""

from __future__ import annotations

import anyio
from anyio.abc import ByteStream


class Pipe(ByteStream):
    """One end. What is sent arrives as it is; the other end may be closed, or deaf."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._arrived = anyio.Event()
        self._closed = False
        self.deaf = anyio.Event()
        """Until it is set, sending to a pipe that ``stop_reading`` was called on waits."""
        self._reading = True
        self.other: Pipe

    def stop_reading(self) -> None:
        self._reading = False

    async def receive(self, max_bytes: int = 65536) -> bytes:
        while not self._data:
            if self._closed:
                raise anyio.ClosedResourceError
            if self.other._closed:
                raise anyio.EndOfStream
            self._arrived = anyio.Event()
            await self._arrived.wait()
        await anyio.lowlevel.checkpoint()
        data = bytes(self._data[:max_bytes])
        del self._data[:max_bytes]
        return data

    async def send(self, item: bytes) -> None:
        await anyio.lowlevel.checkpoint()
        if not self.other._reading:
            await self.other.deaf.wait()
        if self._closed:
            raise anyio.ClosedResourceError
        if self.other._closed:
            raise anyio.BrokenResourceError
        self.other._data += item
        self.other._arrived.set()

    async def send_eof(self) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        self._closed = True
        self._arrived.set()
        self.other._arrived.set()
        await anyio.lowlevel.checkpoint()


def pipe() -> tuple[Pipe, Pipe]:
    one, two = Pipe(), Pipe()
    one.other, two.other = two, one
    return one, two
