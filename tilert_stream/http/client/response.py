"""An answer as it comes: status and headers at once, the body in the pieces that reads bring."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from .errors import UpstreamClosed, UpstreamInvalid, UpstreamTimeout

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from .connection import ClientConnection
    from .head import Head
    from .origin import Origin

__all__ = ("Response",)


class Response:
    """The answer to one request. Whoever has it closes it.

    :param origin: who has answered.
    :param give_back: takes the connection when this is closed, and whether it can be used again.
    """

    __slots__ = (
        "_body",
        "_connection",
        "_give_back",
        "_keep_alive",
        "_left",
        "_origin",
        "headers",
        "label",
        "status",
    )

    def __init__(
        self,
        head: Head,
        connection: ClientConnection,
        origin: Origin,
        give_back: Callable[[Origin, ClientConnection, bool], None],
    ) -> None:
        self.status = head.status
        self.headers = head.headers
        """Names in lower case."""
        self.label = origin.label
        """What the server is called in errors."""
        self._left = head.left
        self._body = head.body
        self._keep_alive = head.keep_alive
        self._connection = connection
        self._origin = origin
        self._give_back: Callable[[Origin, ClientConnection, bool], None] | None = give_back

    @property
    def complete(self) -> bool:
        """Whether the whole body has been received."""
        return self._body.complete and not self._left

    def header(self, name: bytes) -> str | None:
        """The first header called ``name``, which is in lower case."""
        for key, value in self.headers:
            if key == name:
                return value.decode("latin-1")
        return None

    async def receive(self) -> bytes:
        """The next piece of the body, with all that one read has brought; empty at its end.

        A checkpoint only where it has to wait.

        :raises UpstreamClosed: the connection ended before the body.
        :raises UpstreamInvalid: the body's framing is broken.
        """
        while True:
            if not self._left:
                if self._body.complete:
                    return b""
                self._left = await self._connection.receive()
                if not self._left:
                    return self._end()
            data, self._left = self._left, b""
            content = self._feed(data)
            if content:
                return content

    def on_ready(self, callback: Callable[[], object] | None) -> None:
        """Have ``callback`` called when ``receive_ready`` may have something, until ``close``.

        For whoever can do without a task; nothing is called for what is there already. None: no
        longer. Sync.
        """
        self._connection.on_ready(callback)

    def receive_ready(self) -> bytes | None:
        """``receive`` that never waits: None where it would. Sync.

        :raises UpstreamClosed: as ``receive``.
        :raises UpstreamInvalid: as ``receive``.
        """
        while True:
            data, self._left = self._left, b""
            if not data:
                if self._body.complete:
                    return b""
                taken = self._connection.receive_ready()
                if not taken:
                    return None if taken is None else self._end()
                data = taken
            content = self._feed(data)
            if content:
                return content

    def _end(self) -> bytes:
        """The connection has ended, and with it the body, if it may."""
        if self._body.end():
            return b""
        raise UpstreamClosed(f"{self.label} closed the connection in the middle of its answer")

    def _feed(self, data: bytes) -> bytes:
        """The content of what has been read."""
        try:
            return self._body.feed(data)
        except UpstreamInvalid as error:
            raise UpstreamInvalid(f"the answer of {self.label} is broken: {error}") from error

    def chunks(self) -> AsyncIterator[bytes]:
        """Iterate over the pieces, as ``receive`` gives them."""
        return _Chunks(self)

    async def read(self, limit: int, *, within: float | None = None) -> bytes:
        """The body, to its end. A checkpoint only where it has to wait.

        :param limit: bytes; more is refused.
        :param within: seconds for all of it.
        :raises UpstreamInvalid: it is longer, or its framing is broken.
        :raises UpstreamTimeout: it did not come in time.
        :raises UpstreamClosed: the connection ended before the body.
        """
        body = b""
        if self._left:
            # A short answer has come with its head: it needs no timer.
            data, self._left = self._left, b""
            body = self._feed(data)
            self._check(len(body), limit)
        if self._body.complete:
            return body
        with anyio.move_on_after(within):
            return await self._read_on(bytearray(body), limit)
        raise UpstreamTimeout(f"the answer of {self.label} was not complete after {within:g} s")

    async def _read_on(self, body: bytearray, limit: int) -> bytes:
        while piece := await self.receive():
            body += piece
            self._check(len(body), limit)
        return bytes(body)

    def _check(self, size: int, limit: int) -> None:
        if size > limit:
            raise UpstreamInvalid(f"the answer of {self.label} is over {limit} bytes")

    def close(self) -> None:
        """Give the connection back, or close it if the body has not been read. Idempotent."""
        if self._give_back is not None:
            give_back, self._give_back = self._give_back, None
            reusable = self._keep_alive and self.complete and self._body.clean
            self._connection.on_ready(None)
            give_back(self._origin, self._connection, reusable)


class _Chunks:
    def __init__(self, response: Response) -> None:
        self._response = response

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        piece = await self._response.receive()
        if not piece:
            raise StopAsyncIteration
        return piece
