"""One request and its answer: bytes of the socket on the one side, ASGI messages on the other.

``listen``, or the event loop by ``watch``, reads the socket for as long as the app runs. It fills
the request's body, keeps what is pipelined behind it, and is how a client that leaves is noticed at
once; what comes behind a complete answer is the next request: it waits in the kernel. The app calls
``receive``, and ``send`` of the answer.

``receive`` says ``http.disconnect`` only when the client has gone or the last byte of the answer
has been handed over: apps cancel their writer when they see it.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel

from ..errors import TilertStreamError
from .answer import Answer
from .body import RequestBody
from .errors import ClientGone, MalformedRequest, RequestTimeout

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    import h11
    from starlette.types import Message

    from .access_log import AccessRecord
    from .request_head import RequestHead
    from .settings import ServerSettings
    from .socket_input import SocketInput
    from .sockets import SocketWriter

__all__ = ("Exchange",)

BODY_HIGH_WATER = 64 * 1024
"""So much of a body is read ahead of the app. Past it the socket is left alone, so a client that
leaves while its body goes unread is noticed by a failing write only."""


class Exchange:
    """One request ↔ one answer, on a connection that may carry more of them.

    :param parser: h11, having read the head; called only where it is needed.
    :param record: the request's line in the access log.
    :param closing: whether the connection must close after this answer.
    """

    __slots__ = (
        "_body",
        "_body_delivered",
        "_consumed",
        "_input",
        "_reading",
        "_settings",
        "answer",
        "input_ended",
        "refused",
    )

    def __init__(
        self,
        request: RequestHead,
        parser: Callable[[], h11.Connection],
        sock: socket.socket,
        socket_input: SocketInput,
        writer: SocketWriter,
        settings: ServerSettings,
        record: AccessRecord,
        closing: Callable[[], bool],
        *,
        input_ended: bool,
    ) -> None:
        self._input = socket_input
        self._settings = settings
        self._body = RequestBody(request, parser, settings)
        self._body_delivered = False
        self._reading: anyio.CancelScope | None = None
        self._consumed: anyio.Event | None = None
        # It knows nothing of this object: a request is freed with the last word of it.
        self.answer = Answer(request, self._body, parser, sock, writer, record, closing)
        self.input_ended = input_ended
        """The client has closed its sending side (seen only with ``allow_half_close``)."""
        self.refused: TilertStreamError | None = None
        """Why the server itself ends the request, in the middle of its body."""

    @property
    def behind(self) -> bytes:
        """What came behind the request."""
        return self._body.behind

    @property
    def input_clean(self) -> bool:
        """Whether the request was read to its end, and nothing more than that."""
        return self._body.complete and not self._body.behind

    # --- the socket's side -------------------------------------------------------------------

    def begin(self, behind: bytes) -> None:
        """Take what has come of the body.

        :param behind: what came with its head, and ``parser`` has not been given.
        :raises ~tilert_stream.errors.TilertStreamError: as ``RequestBody.feed``.
        """
        self._body.feed(behind)
        if self.input_ended and not self._body.complete:
            raise MalformedRequest("The request is not valid HTTP/1.1: its body is cut short.")

    def read_ready(self) -> None:
        """Read of the body what is there already, as most are when their head has been. Sync.

        That the client has left is for whoever reads on to see: the app is to be told.

        :raises ~tilert_stream.errors.TilertStreamError: as ``RequestBody.feed``.
        """
        if self._body.complete:
            return
        with suppress(ClientGone):
            while not self._body.complete and len(self._body.content) < BODY_HIGH_WATER:
                data = self._input.ready()
                if not data:
                    return
                self._take(data)

    async def listen(self, scope: anyio.CancelScope) -> None:
        """Read until the client leaves. ``scope`` is cancelled if its request must be refused."""
        try:
            while not (self.input_ended or (self.answer.complete and self._body.behind)):
                while len(self._body.content) >= BODY_HIGH_WATER:
                    self._consumed = anyio.Event()
                    await self._consumed.wait()
                self._take(await self._read())
        except ClientGone as error:
            self.answer.abandon(error)
        except TilertStreamError as error:
            self.refused = error
            self.answer.abandon(ClientGone(f"the request was refused: {error}"))
            scope.cancel()

    def watch(self) -> Callable[[], object] | None:
        """``listen`` without a task: the event loop reads, until the returned function is called.

        None: a task is needed, for a body that is still to come.
        """
        if self.input_ended:
            return _nothing
        if not self._body.complete:
            return None
        self._input.call(self._look)
        return self._input.forget

    def _look(self) -> bool:
        """Take what is there; whether more of it matters."""
        try:
            while not (self.input_ended or (self.answer.complete and self._body.behind)):
                data = self._input.ready()
                if data is None:
                    return True
                self._take(data)
        except ClientGone as error:
            self.answer.abandon(error)
        return False

    async def _read(self) -> bytes:
        if self._body.complete:
            return await self._input.receive()
        with anyio.CancelScope() as self._reading:
            # A client that waits for "100 Continue" owes nothing until the app asks for its body.
            if not self._body.waits_for_100_continue:
                self._limit_reading()
            return await self._input.receive()
        raise RequestTimeout(
            f"No byte of the body came for {self._settings.body_timeout} s; send it without pauses."
        )

    def _limit_reading(self) -> None:
        if self._reading is not None and self._settings.body_timeout is not None:
            self._reading.deadline = anyio.current_time() + self._settings.body_timeout

    def _take(self, data: bytes) -> None:
        complete = self._body.complete
        if not data:
            if not (complete and self._settings.allow_half_close):
                raise ClientGone("the client closed the connection")
            self.input_ended = True
        self._body.feed(data)
        if not complete:
            self.answer.wake()
        elif (
            len(self._body.behind) > self._settings.max_pipelined_bytes and not self.answer.complete
        ):
            raise ClientGone(
                f"more than {self._settings.max_pipelined_bytes} bytes came behind the request"
            )

    # --- the app's side ----------------------------------------------------------------------

    async def receive(self) -> Message:
        """ASGI ``receive``: the body, then ``http.disconnect`` when there is one.

        A checkpoint but for a body that has come: most have with their head, and a turn of the
        loop is what a first token would pay for it.
        """
        if self.answer.gone is None and (interim := self._body.go_ahead()):
            self._limit_reading()
            with suppress(ClientGone):
                await self.answer.send_interim(interim)
        while not (self.answer.gone or self.answer.complete):
            if not self._body_delivered and (self._body.content or self._body.complete):
                body = bytes(self._body.content)
                self._body.content.clear()
                self._body_delivered = self._body.complete
                if self._consumed is not None:
                    self._consumed.set()
                return {
                    "type": "http.request",
                    "body": body,
                    "more_body": not self._body.complete,
                }
            if self.answer.waiter is None:
                self.answer.waiter = anyio.Event()
            await self.answer.waiter.wait()
        await anyio.lowlevel.checkpoint()
        return {"type": "http.disconnect"}

    def on_disconnect(self, callback: Callable[[], object]) -> bool:
        """Call ``callback`` as soon as the client has gone, or at once if it has.

        False: a body is still to be received; behind 64 KiB of it nobody sees the client leave.

        The server's own extension of ASGI: an app that only wants to end then needs no task, of
        some 4 KB a stream, that waits for ``receive`` to say so.
        """
        if not self._body.complete or len(self._body.content) >= BODY_HIGH_WATER:
            return False
        self.answer.on_gone = callback
        if self.answer.gone is not None:
            callback()
        return True


def _nothing() -> None:
    """There is nothing more to read."""
