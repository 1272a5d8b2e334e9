"""The head of the next request: bytes of a kept connection in, the head out.

Waiting for a first byte may take long and ends with a drain; the rest of a head has its own limit.

A plain head that has come in one piece is read without h11. Any other gets a parser of its own, and
so does a plain one whose answer h11 is to write after all.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Final

import anyio
import h11

from .errors import ClientGone, RequestTimeout
from .refusal import refusal_for
from .request_head import head_of, plain_head

if TYPE_CHECKING:
    from collections.abc import Callable

    from .request_head import RequestHead
    from .settings import ServerSettings
    from .socket_input import SocketInput

__all__ = ("HeadReader",)

AT_ONCE_MAX: Final = 8
"""So many requests in a row are taken without a turn of the loop: a client that is always faster
with its next one, and whose answers wait for nothing, would otherwise have the loop to itself."""


class HeadReader:
    """Reads the heads of one connection's requests.

    :param draining: whether no further request is to be taken.
    """

    __slots__ = (
        "_at_once",
        "_conn",
        "_draining",
        "_head",
        "_idle",
        "_input",
        "_settings",
        "_unread",
        "input_ended",
    )

    def __init__(
        self, socket_input: SocketInput, settings: ServerSettings, draining: Callable[[], bool]
    ) -> None:
        self._input = socket_input
        self._settings = settings
        self._draining = draining
        self.input_ended = False
        """The client has closed its sending side."""
        self._unread = b""
        self._head = b""
        self._conn: h11.Connection | None = None
        self._at_once = 0
        self._idle: anyio.CancelScope | None = None

    def end_if_idle(self) -> None:
        """Let ``next`` return None if it waits for a request of which no byte has come."""
        if self._idle is not None:
            self._idle.cancel()

    async def next(self) -> RequestHead | None:
        """Wait for the head of the next request; None: there will be none.

        A checkpoint only where it has to wait, or after so many requests.

        :raises ~tilert_stream.errors.TilertStreamError: what came is no request that we serve.
        :raises ClientGone: the client has left in the middle of it.
        """
        if not await self._wait_for_begin():
            return None
        # Most heads come in one piece: no time limit is paid for then.
        begin, end, self._unread = self._unread.partition(_HEAD_END)
        self._head = begin + end
        head = plain_head(self._head)
        if head is not None:
            return head
        self._conn = conn = self._fed()
        head = self._parse(conn)
        if head is not None:
            return head
        with anyio.move_on_after(self._settings.header_timeout):
            while head is None:
                data = await self._input.receive()
                if not data:
                    raise ClientGone(_LEFT)
                conn.receive_data(data)
                head = self._parse(conn)
            return head
        raise RequestTimeout(
            f"The headers were not complete after {self._settings.header_timeout} s; send them at"
            " once."
        )

    def parser(self) -> h11.Connection:
        """h11, having read the last head: to read the body with, or to write the answer. Sync."""
        if self._conn is None:
            self._conn = self._fed()
            self._conn.next_event()
        return self._conn

    def take_behind(self) -> bytes:
        """What came with the last head, and ``parser`` has not been given. Sync."""
        behind, self._unread = self._unread, b""
        return behind

    def go_on(self, behind: bytes) -> None:
        """Make ready for the next request. Sync.

        :param behind: what came behind the last one.
        """
        self._unread = behind
        self._conn = None

    def _fed(self) -> h11.Connection:
        conn = h11.Connection(h11.SERVER, max_incomplete_event_size=self._settings.max_header_bytes)
        conn.receive_data(self._head)
        return conn

    def _parse(self, conn: h11.Connection) -> RequestHead | None:
        """The head, if all of it has come."""
        try:
            event = conn.next_event()
        except h11.RemoteProtocolError as error:
            if self.input_ended:
                raise ClientGone(_LEFT) from error
            raise refusal_for(error, self._settings.max_header_bytes) from error
        if not isinstance(event, h11.Request):
            return None
        head = head_of(event)
        if head.length is not None:
            self._unread = conn.trailing_data[0] + self._unread
        elif self._unread:
            conn.receive_data(self.take_behind())
        return head

    async def _wait_for_begin(self) -> bool:
        """Wait for the first byte of a request; False: there will be none."""
        if self._begun(b""):
            return True
        if self._at_once < AT_ONCE_MAX and not self._draining():
            # A client that has its answer may ask again before all that was behind it is done.
            self._at_once += 1
            data = self._input.ready()
            if data is not None:
                # All that was behind the last answer, too, was done in one go.
                self._input.let_others_pass()
                self.input_ended = not data
                if self.input_ended or self._begun(data):
                    return not self.input_ended
        self._at_once = 0
        with anyio.CancelScope() as self._idle:
            _limit(self._idle, self._settings.idle_timeout)
            while not self._draining():
                data = await self._input.receive()
                self.input_ended = not data
                if self.input_ended or self._begun(data):
                    self._idle = None
                    return not self.input_ended
        self._idle = None
        # The drain closes idle connections; a request that has just come would get a reset.
        ready = self._input.ready() if self._draining() else None
        return ready is not None and self._begun(ready)

    def _begun(self, data: bytes) -> bool:
        """Take what came; whether a request has begun.

        Empty lines in front are dropped: broken clients end a body with one (RFC 9112, 2.2).
        """
        self._unread += data
        if self._unread[:1] == b"\r":
            self._unread = _EMPTY_LINES.sub(b"", self._unread, count=1)
        return self._unread not in (b"", b"\r")


_LEFT: Final = "the client closed the connection in a request"
_HEAD_END: Final = b"\r\n\r\n"
_EMPTY_LINES: Final = re.compile(rb"\A(?:\r\n)*")


def _limit(scope: anyio.CancelScope, seconds: float | None) -> None:
    scope.deadline = math.inf if seconds is None else anyio.current_time() + seconds
