"""The answer to one request: ASGI messages in, framed bytes out.

Rules

1. The head leaves in one write with the first body message, and each later body message is one
   write. Until the head has left, a failure can still become an HTTP status.
2. Of a plain answer to a plain request h11 hears nothing: that saves a first token 70 calls. Its
   head is written here, and its body counted or put in chunks.
3. Of any other h11 does the head, counts a body with a Content-Length, and hears of the end when
   that has left. It keeps no state between the head and the end of chunks: they are framed here.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import h11

from .answer_head import AnswerHead
from .errors import ASGIViolation, ClientGone
from .sockets import end_output

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable

    import anyio
    from starlette.types import Message

    from .access_log import AccessRecord
    from .body import RequestBody
    from .framing import Framing
    from .request_head import RequestHead
    from .sockets import SocketWriter

__all__ = ("Answer",)

LAST_CHUNK = b"0\r\n\r\n"


class Answer:
    """What the app sends for ``request``, on a connection that may carry more answers.

    :param parser: h11, having read the head; called only where it is to write the answer.
    :param body: of the request. The client may still be sending one that the app does not want,
        and could take the next request on this connection for lost; so the close is announced.
    :param record: the request's line in the access log.
    :param closing: whether the connection must close after this answer (the server drains).
    """

    __slots__ = (
        "_bodiless",
        "_body",
        "_chunks_allowed",
        "_closing",
        "_conn",
        "_framing",
        "_head",
        "_parser",
        "_plain",
        "_record",
        "_sock",
        "_unsent",
        "_writer",
        "closes",
        "complete",
        "gone",
        "head_left",
        "on_gone",
        "waiter",
    )

    def __init__(
        self,
        request: RequestHead,
        body: RequestBody,
        parser: Callable[[], h11.Connection],
        sock: socket.socket,
        writer: SocketWriter,
        record: AccessRecord,
        closing: Callable[[], bool],
    ) -> None:
        self._body = body
        self._parser = parser
        self._conn: h11.Connection | None = None
        self._sock = sock
        self._writer = writer
        self._record = record
        self._closing = closing
        self._bodiless = request.method == b"HEAD"
        self._chunks_allowed = request.http_version >= b"1.1"
        self._plain = request.plain
        self._head: AnswerHead | None = None
        self._framing: Framing | None = None
        self._unsent = 0
        self.gone: ClientGone | None = None
        """Why nobody reads the answer any more."""
        self.head_left = False
        """The client may have seen a status."""
        self.complete = False
        """The last byte of the answer has been handed to the kernel."""
        self.closes = request.closes
        """The connection ends with it: the client wants that, or it has been announced."""
        self.on_gone: Callable[[], object] | None = None
        """Called when nobody reads the answer any more."""
        self.waiter: anyio.Event | None = None
        """Of whoever waits for its end, or for more of the request."""

    @property
    def close_delimited(self) -> bool:
        """Whether the end of the connection is the end of the body."""
        return self.head_left and self._framing == "close"

    def abandon(self, gone: ClientGone) -> None:
        """Nobody reads it any more: every write raises from now on. Sync, idempotent."""
        if self.gone is None:
            self.gone = gone
            self._writer.fail(gone)
            self.wake()
            if self.on_gone is not None:
                self.on_gone()

    def wake(self) -> None:
        """Set ``waiter``, once. Sync."""
        if self.waiter is not None:
            self.waiter.set()
            self.waiter = None

    async def send(self, message: Message) -> None:
        """ASGI ``send``. Yields to other tasks as ``SocketWriter.write`` does.

        :raises ClientGone: the client has left; an ``OSError``, as ASGI has it.
        :raises ASGIViolation: the message is not allowed here.
        :raises h11.LocalProtocolError: a header or the length of the body is invalid.
        """
        if self.gone is not None:
            raise ClientGone(str(self.gone)) from self.gone
        if self.complete:
            raise ASGIViolation(f"{message['type']!r} was sent after the end of the answer.")
        kind: str = message["type"]
        if kind == "http.response.body":
            body: bytes = message.get("body", b"")
            more: bool = message.get("more_body", False)
            rest = self._begin(body, self._framed(body, more=more))
            if rest is not None:
                await self._finish(rest, last=not more)
            elif not more:
                self._end()
        elif kind == "http.response.start":
            self._start(message)
        else:
            raise ASGIViolation(f"{kind!r} is no message of an HTTP answer.")

    def send_now(
        self, body: bytes, start: Message | None = None, *, last: bool = False
    ) -> Callable[[], Awaitable[None]] | None:
        """A body message, as far as it goes at once; None: that was all of it. Sync.

        The server's own extension of ASGI: whoever has bytes at hand then needs no task of his own
        to be stepped for them. Only for a ``send`` that nobody has wrapped.

        :param start: the message that begins the answer, where none has been sent.
        :returns: what must be called and awaited before anything else is sent.
        :raises ClientGone: as ``send``.
        :raises ASGIViolation: as ``send``.
        """
        if start is not None:
            self._start(start)
        if self.gone is not None or self.complete or not body:
            return partial(
                self.send, {"type": "http.response.body", "body": body, "more_body": not last}
            )
        rest = self._begin(body, self._framed(body, more=not last))
        if rest is not None:
            return partial(self._finish, rest, last=last)
        if last:
            self._end()
        return None

    async def send_interim(self, data: bytes) -> None:
        """Send what comes before the answer: ``100 Continue``.

        :raises ClientGone: the client has left.
        """
        rest = self._begin(b"", data)
        if rest is not None:
            await self._finish(rest)

    def _start(self, message: Message) -> None:
        if self._head is not None:
            raise ASGIViolation("'http.response.start' was sent twice.")
        self._head = AnswerHead(message)

    def _framed(self, body: bytes, *, more: bool) -> bytes:
        if self._framing is not None:
            framed = self._content(body, more=more)
        elif self._head is not None:
            framed = self._render(self._head) + self._content(body, more=more)
        else:
            raise ASGIViolation("'http.response.body' was sent before 'http.response.start'.")
        if framed:
            self.head_left = True
        return framed

    def _render(self, head: AnswerHead) -> bytes:
        framing = head.framing(bodiless=self._bodiless, chunks_allowed=self._chunks_allowed)
        self._record.status = head.status
        self._record.answer = head
        announced = self._closing() or not self._body.complete
        self.closes = self.closes or announced
        rendered = head.plain(framing, close=self.closes) if self._plain else None
        if rendered is None:
            self._conn = self._parser()
            rendered = head.render(self._conn, close=announced)
        else:
            self._unsent = head.length or 0
        # Last: what h11 refuses is no head, and no body may follow it.
        self._framing = framing
        return rendered

    def _content(self, body: bytes, *, more: bool) -> bytes:
        if self._framing == "chunked":
            chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            return chunk if more else chunk + LAST_CHUNK
        if self._conn is None:
            return self._counted(body, more=more)
        framed = b""
        if body and self._framing != "none":
            framed = self._conn.send(h11.Data(data=body))
        return framed if more else framed + self._conn.send(h11.EndOfMessage())

    def _counted(self, body: bytes, *, more: bool) -> bytes:
        """As h11 does it: what was wrong once stays so."""
        if body and len(body) > self._unsent:
            self._unsent = -1
            raise h11.LocalProtocolError("Too much data for declared Content-Length")
        self._unsent -= len(body)
        if self._unsent and not more:
            self._unsent = -1
            raise h11.LocalProtocolError("Too little data for declared Content-Length")
        return body

    def _begin(self, body: bytes, framed: bytes) -> memoryview | None:
        try:
            rest = self._writer.begin(framed)
        except ClientGone as error:
            self.abandon(error)
            raise
        if self._framing != "none":
            self._record.sent += len(body)
        return rest

    async def _finish(self, rest: memoryview, *, last: bool = False) -> None:
        try:
            await self._writer.finish(rest)
        except ClientGone as error:
            self.abandon(error)
            raise
        if last:
            self._end()

    def _end(self) -> None:
        self.complete = True
        if self._conn is not None:
            if self._conn.our_state is h11.SEND_BODY:
                self._conn.send(h11.EndOfMessage())
            self.closes = self._conn.our_state is h11.MUST_CLOSE
        if self.closes:
            # The app may go on for long (background tasks); the client is not to wait for it.
            end_output(self._sock)
        self.wake()
