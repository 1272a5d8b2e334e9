"""Answers as ASGI callables: from inside our app, or returned by an endpoint of somebody else's.

In: a stream of encoded bytes. Out: ASGI messages. The head leaves together with the first bytes, so
that every failure before them is a real HTTP status. A failure after them ends in a cut: the
response is left without its last message, which is the one ending that every client counts as a
failure.
"""

from __future__ import annotations

import logging
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from ..errors import TilertStreamError
from ..events import Finished
from ..openai.errors import error_body, error_headers
from ..opened import Opened
from ..telemetry.timeline import Timeline
from .disconnect import while_there
from .wakes import SEND_NOW, Heartbeats, SentNow

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

    from starlette.types import ASGIApp, Receive, Scope, Send

    from ..scope import RequestScope
    from ..stream import Stream
    from .disconnect import DisconnectListener
    from .wakes import SendNow

__all__ = (
    "ANSWER_BEGUN",
    "EVENT_STREAM",
    "JSON",
    "ErrorResponse",
    "Headers",
    "JSONBody",
    "StreamResponse",
)

logger = logging.getLogger(__name__)

Headers: TypeAlias = "tuple[tuple[bytes, bytes], ...]"

EVENT_STREAM: Final[Headers] = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),  # nginx would hold the stream back otherwise
)
JSON: Final[Headers] = ((b"content-type", b"application/json"),)


ANSWER_BEGUN: Final = "tilert_stream.answer_begun"
"""In a request's scope, once no other answer can be given: it has begun, or was tried."""


class JSONBody:
    """A whole body, known at once."""

    def __init__(self, body: bytes, *, status: int = 200, headers: Headers = JSON):
        self._status = status
        self._headers = [*headers, (b"content-length", str(len(body)).encode())]
        self._body = body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        scope[ANSWER_BEGUN] = True
        await send(
            {"type": "http.response.start", "status": self._status, "headers": self._headers}
        )
        await send({"type": "http.response.body", "body": self._body})


class ErrorResponse(JSONBody):
    """An error as the nested OpenAI object, under its own HTTP status."""

    def __init__(self, error: TilertStreamError, headers: Headers = ()) -> None:
        super().__init__(
            error_body(error), status=error.status, headers=(*error_headers(error), *headers)
        )


class StreamResponse:
    """The answer of one request, while the client is there.

    The client's leaving cancels everything that runs for it. Usable as the return value of a
    Starlette or FastAPI endpoint.

    :param opened: ``service.open(request, encoder)``.
    :param content: the headers that describe the encoder's bytes.
    :param headers: sent besides, with an error's answer too.
    :param cut_on_error: how a stream that has begun ends on an error: cut, or (False) like a
        complete one, for clients that need it so.
    :param refuse: makes the answer for an error that nothing has been sent before.
    :param server_timing: say where the time went, in the head of an answer that is sent whole.
    :param heartbeat: seconds of silence, from the reservation of a slot on, after which an event
        stream gets a comment; ``inf``: never.
    """

    __slots__ = (
        "_content",
        "_cut_on_error",
        "_headers",
        "_heartbeat",
        "_opened",
        "_refuse",
        "_server_timing",
        "_started",
    )

    def __init__(
        self,
        opened: AbstractAsyncContextManager[Stream[bytes]],
        *,
        content: Headers = EVENT_STREAM,
        headers: Headers = (),
        cut_on_error: bool = True,
        refuse: Callable[[TilertStreamError, Headers], ASGIApp] = ErrorResponse,
        heartbeat: float = inf,
        server_timing: bool = False,
    ) -> None:
        self._opened = opened
        self._content = content
        self._headers = headers
        self._cut_on_error = cut_on_error
        self._refuse = refuse
        self._heartbeat = heartbeat
        self._server_timing = server_timing
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the request and send its answer, until the client leaves."""
        outcome: Finished | None = None
        opened = False
        send_now = self._send_now(scope, send)
        if send_now is not None:
            _forward(self._opened)
        try:
            # Begun before anybody listens for the client's leaving: that costs time, too.
            async with self._opened as stream:
                opened = True
                outcome = await self._answer(stream, scope, receive, send, send_now)
        except TilertStreamError as error:
            if opened:
                # Whoever answers such an error must not do it into an answer that has begun.
                raise RuntimeError(f"the answer had begun: {error}") from error
            # A stage's factory failed: nothing has been sent, so it is an answer like others.
            outcome = Finished.failed(error)
        finally:
            if self._started:
                scope[ANSWER_BEGUN] = True
        if outcome is not None and outcome.error is not None:
            await self._refuse(outcome.error, self._headers)(scope, receive, send)

    def _send_now(self, scope: Scope, send: Send) -> SendNow | None:
        """The server's own way for parts of a body; None: they go as messages."""
        # Without heartbeats no timer is paid for, neither once a request nor once a wake.
        send_now = scope.get("extensions", {}).get(SEND_NOW) if self._heartbeat == inf else None
        # Another server, or a middleware that wants to see every message.
        ours = send_now is not None and getattr(send, "__self__", None) is send_now.__self__
        return cast("SendNow", send_now) if ours else None

    async def _answer(
        self,
        stream: Stream[bytes],
        scope: Scope,
        receive: Receive,
        send: Send,
        send_now: SendNow | None,
    ) -> Finished | None:
        """Write until the end, or until the client leaves; as ``_write``."""
        outcome: Finished | None = None

        async def write(listener: DisconnectListener) -> None:
            nonlocal outcome
            wakes = self._wakes(stream, send_now, listener)
            try:
                outcome = await self._write(stream, wakes, send, listener)
                listener.over = True
                _log(stream, answered=outcome is None)
            finally:
                # Ending to listen may take turns of the loop: the nodes need not wait for that.
                stream.close()

        await while_there(scope, receive, write)
        return outcome

    def _wakes(
        self, stream: Stream[bytes], send_now: SendNow | None, listener: DisconnectListener
    ) -> AsyncIterator[list[bytes]]:
        if self._heartbeat != inf:
            return Heartbeats(stream, self._heartbeat)
        if send_now is None:
            return stream
        return SentNow(stream, send_now, partial(self._start, stream.scope, None), listener)

    async def _write(
        self,
        stream: Stream[bytes],
        wakes: AsyncIterator[list[bytes]],
        send: Send,
        listener: DisconnectListener,
    ) -> Finished | None:
        """Write until the end; the outcome if it is an error that nothing has been sent before."""
        async for chunks in wakes:
            body = b"".join(chunks)
            outcome = stream.outcome
            failed = outcome is not None and outcome.error is not None
            if failed and not self._started:
                break
            over = outcome is not None and not (failed and self._cut_on_error)
            listener.over = over
            if not self._started:
                await send(self._start(stream.scope, len(body) if over else None))
            await send({"type": "http.response.body", "body": body, "more_body": not over})
        outcome = stream.outcome
        failed = outcome is not None and outcome.error is not None
        if not (listener.over or failed):
            # The end came behind the last bytes: the encoder had nothing more to say.
            listener.over = True
            if not self._started:
                await send(self._start(stream.scope, 0))
            await send({"type": "http.response.body"})
            return None
        return None if self._started else outcome

    def _start(self, request: RequestScope, length: int | None) -> dict[str, object]:
        self._started = True
        headers = [*self._content, *self._headers]
        if request.record is not None:
            request.record.status = 200
        if length is not None:
            headers.append((b"content-length", str(length).encode()))
            if self._server_timing:
                spent = Timeline.of(request).server_timing()
                headers.append((b"server-timing", spent.encode()))
        return {"type": "http.response.start", "status": 200, "headers": headers}


def _forward(opened: object) -> None:
    """Say that its stream will be forwarded, if it is one of our service's."""
    if isinstance(opened, Opened):
        opened.forwarded = True


def _log(stream: Stream[bytes], *, answered: bool) -> None:
    """Say why a request failed: an access log has a status only, and of a cut not even that.

    :param answered: the answer had begun.
    """
    error = None if stream.outcome is None else stream.outcome.error
    if error is not None:
        logger.log(
            logging.WARNING if error.status >= 500 else logging.INFO,
            "request %s failed%s: %d %s, %r",
            stream.scope.request.id,
            " after its answer had begun" if answered else "",
            error.status,
            error.code,
            error.message,
        )
