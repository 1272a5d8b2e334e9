"""One request and its answer: h11 events on the one side, ASGI messages on the other.

``listen``, or the event loop by ``watch``, reads the socket for as long as the app runs. It fills
the request's body, keeps what is pipelined behind it, and is how a client that leaves is noticed at
once; what comes behind a complete answer is the next request: it waits in the kernel. The app calls
``receive``, and ``send`` of the answer.

A plain body that has come whole with its head is taken past h11, which would copy it twice and ask
40 questions about it.

``receive`` says ``http.disconnect`` only when the client has gone or the last byte of the answer
has been handed over: apps cancel their writer when they see it.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import h11

from ..errors import BodyTooLarge, TilertStreamError
from .answer import Answer
from .errors import ClientGone, RequestTimeout
from .plain import outline_of
from .refusal import refusal_for

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from starlette.types import Message

    from .access_log import AccessRecord
    from .settings import ServerSettings
    from .socket_input import SocketInput
    from .sockets import SocketWriter

__all__ = ("Exchange",)

BODY_HIGH_WATER = 64 * 1024
"""So much of a body is read ahead of the app. Past it the socket is left alone, so a client that
leaves while its body goes unread is noticed by a failing write only."""


class Exchange:
    """One request ↔ one answer, on a connection that may carry more of them.

    :param record: the request's line in the access log.
    :param closing: whether the connection must close after this answer (the server drains).
    """

    __slots__ = (
        "_body",
        "_body_complete",
        "_body_delivered",
        "_body_seen",
        "_changed",
        "_conn",
        "_consumed",
        "_input",
        "_on_gone",
        "_pipelined",
        "_plain_length",
        "_reading",
        "_settings",
        "answer",
        "input_ended",
        "left",
        "refused",
    )

    def __init__(
        self,
        conn: h11.Connection,
        request: h11.Request,
        sock: socket.socket,
        socket_input: SocketInput,
        writer: SocketWriter,
        settings: ServerSettings,
        record: AccessRecord,
        closing: Callable[[], bool],
        *,
        input_ended: bool,
    ) -> None:
        self._conn = conn
        self._input = socket_input
        self._settings = settings
        self._body = bytearray()
        self._body_seen = 0
        self._body_complete = False
        self._body_delivered = False
        self._pipelined = 0
        self._changed: anyio.Event | None = None
        self._on_gone: Callable[[], object] | None = None
        self._reading: anyio.CancelScope | None = None
        self._consumed: anyio.Event | None = None
        outline = outline_of(request)
        self._plain_length = outline.length
        # The client may still be sending a body that the app does not want, and could take the
        # next request on this connection for lost; so the close is announced.
        self.answer = Answer(
            conn,
            request,
            outline,
            sock,
            writer,
            record,
            closing=lambda: closing() or not self._body_complete,
            over=self._over,
        )
        self.input_ended = input_ended
        """The client has closed its sending side (seen only with ``allow_half_close``)."""
        self.left: bytes | None = None
        """What came behind a body that was taken past h11; None: h11 has the body."""
        self.refused: TilertStreamError | None = None
        """Why the server itself ends the request, in the middle of its body."""

    @property
    def input_clean(self) -> bool:
        """Whether the request was read to its end, and nothing more than that."""
        return self._body_complete and not self._pipelined

    # --- the socket's side -------------------------------------------------------------------

    def begin(self, behind: bytes) -> None:
        """Take what has come of the body.

        :param behind: what came with its head, and h11 has not seen.
        :raises ~tilert_stream.errors.TilertStreamError: as ``parse``.
        """
        length = self._plain_length if behind else None
        if length is not None and len(behind) >= length and not self._conn.trailing_data[0]:
            self._body += behind[:length]
            self._body_complete = True
            self.left = behind[length:]
            self._pipelined = len(self.left)
            return
        if behind:
            self._conn.receive_data(behind)
        self.parse()

    def parse(self) -> None:
        """Take the body out of what has been read.

        :raises ~tilert_stream.errors.TilertStreamError: the body is broken or too large.
        """
        while not self._body_complete:
            try:
                event = self._conn.next_event()
            except h11.RemoteProtocolError as error:
                raise refusal_for(error, self._settings.max_header_bytes) from error
            if isinstance(event, h11.Data):
                self._body += event.data
                self._body_seen += len(event.data)
                if self._body_seen > self._settings.max_body_bytes:
                    raise BodyTooLarge(
                        f"The body is longer than {self._settings.max_body_bytes} bytes."
                    )
            elif isinstance(event, h11.EndOfMessage):
                self._body_complete = True
                self._pipelined = len(self._conn.trailing_data[0])
            else:
                return
            self._notify()

    def read_ready(self) -> None:
        """Read of the body what is there already, as most are when their head has been. Sync.

        That the client has left is for whoever reads on to see: the app is to be told.

        :raises ~tilert_stream.errors.TilertStreamError: as ``parse``.
        """
        with suppress(ClientGone):
            while not self._body_complete and len(self._body) < BODY_HIGH_WATER:
                data = self._input.ready()
                if not data:
                    return
                self._take(data)

    async def listen(self, scope: anyio.CancelScope) -> None:
        """Read until the client leaves. ``scope`` is cancelled if its request must be refused."""
        try:
            while not (self.input_ended or (self.answer.complete and self._pipelined)):
                while len(self._body) >= BODY_HIGH_WATER:
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

        None: a task is needed, for a body that is still to come, or on a loop that calls nobody.
        """
        if self.input_ended:
            return _nothing
        if not self._body_complete:
            return None
        return self._input.forget if self._input.call(self._look) else None

    def _look(self) -> bool:
        """Take what is there; whether more of it matters."""
        try:
            while not (self.input_ended or (self.answer.complete and self._pipelined)):
                data = self._input.ready()
                if data is None:
                    return True
                self._take(data)
        except ClientGone as error:
            self.answer.abandon(error)
        return False

    async def _read(self) -> bytes:
        if self._body_complete:
            return await self._input.receive()
        # A client that waits for "100 Continue" owes nothing until the app asks for its body.
        waits = self._conn.they_are_waiting_for_100_continue
        with anyio.CancelScope() as self._reading:
            if not waits:
                self._limit_reading()
            return await self._input.receive()
        raise RequestTimeout(
            f"No byte of the body came for {self._settings.body_timeout} s; send it without pauses."
        )

    def _limit_reading(self) -> None:
        if self._reading is not None and self._settings.body_timeout is not None:
            self._reading.deadline = anyio.current_time() + self._settings.body_timeout

    def _take(self, data: bytes) -> None:
        if not data:
            if not (self._body_complete and self._settings.allow_half_close):
                raise ClientGone("the client closed the connection")
            self.input_ended = True
        self._conn.receive_data(data)
        if not self._body_complete:
            self.parse()
            return
        self._pipelined += len(data)
        if self._pipelined > self._settings.max_pipelined_bytes and not self.answer.complete:
            raise ClientGone(
                f"more than {self._settings.max_pipelined_bytes} bytes came behind the request"
            )

    def _over(self) -> None:
        self._notify()
        if self.answer.gone is not None and self._on_gone is not None:
            self._on_gone()

    def _notify(self) -> None:
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    # --- the app's side ----------------------------------------------------------------------

    async def receive(self) -> Message:
        """ASGI ``receive``: the body, then ``http.disconnect`` when there is one.

        A checkpoint but for a body that has come: most have with their head, and a turn of the
        loop is what a first token would pay for it.
        """
        if (
            not self._body_complete
            and self._conn.they_are_waiting_for_100_continue
            and self.answer.gone is None
        ):
            interim = self._conn.send(h11.InformationalResponse(status_code=100, headers=[]))
            self._limit_reading()
            with suppress(ClientGone):
                await self.answer.send_interim(interim)
        while not (self.answer.gone or self.answer.complete):
            if not self._body_delivered and (self._body or self._body_complete):
                body = bytes(self._body)
                self._body.clear()
                self._body_delivered = self._body_complete
                if self._consumed is not None:
                    self._consumed.set()
                return {
                    "type": "http.request",
                    "body": body,
                    "more_body": not self._body_complete,
                }
            if self._changed is None:
                self._changed = anyio.Event()
            await self._changed.wait()
        await anyio.lowlevel.checkpoint()
        return {"type": "http.disconnect"}

    def on_disconnect(self, callback: Callable[[], object]) -> bool:
        """Call ``callback`` as soon as the client has gone, or at once if it has.

        False: a body is still to be received; behind 64 KiB of it nobody sees the client leave.

        The server's own extension of ASGI: an app that only wants to end then needs no task, of
        some 4 KB a stream, that waits for ``receive`` to say so.
        """
        if not self._body_complete or len(self._body) >= BODY_HIGH_WATER:
            return False
        self._on_gone = callback
        if self.answer.gone is not None:
            callback()
        return True


def _nothing() -> None:
    """There is nothing more to read."""
