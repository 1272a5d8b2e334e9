"""The head of the next request: bytes of a kept connection in, an h11 request out.

Waiting for a first byte may take long and ends with a drain; the rest of a head has its own limit.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Final

import anyio
import h11

from .errors import ClientGone, RequestTimeout
from .refusal import refusal_for

if TYPE_CHECKING:
    from collections.abc import Callable

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
        "_behind",
        "_draining",
        "_half_line",
        "_idle",
        "_input",
        "_settings",
        "conn",
        "input_ended",
    )

    def __init__(
        self, socket_input: SocketInput, settings: ServerSettings, draining: Callable[[], bool]
    ) -> None:
        self._input = socket_input
        self._settings = settings
        self._draining = draining
        self.conn = self._parser()
        """h11's state of this connection; another object after empty lines were dropped."""
        self.input_ended = False
        """The client has closed its sending side."""
        self._half_line: bytes = b""
        self._behind: bytes = b""
        self._at_once = 0
        self._idle: anyio.CancelScope | None = None

    def end_if_idle(self) -> None:
        """Let ``next`` return None if it waits for a request of which no byte has come."""
        if self._idle is not None:
            self._idle.cancel()

    async def next(self) -> h11.Request | None:
        """Wait for the head of the next request; None: there will be none.

        A checkpoint only where it has to wait, or after so many requests.

        :raises ~tilert_stream.errors.TilertStreamError: what came is no request that we serve.
        """
        if not await self._wait_for_begin():
            return None
        # Most heads come in one piece: no time limit is paid for then.
        head, ended = self._take()
        if head is not None or ended:
            return head
        with anyio.move_on_after(self._settings.header_timeout):
            while head is None and not ended:
                data = await self._input.receive()
                self.input_ended = not data
                self.conn.receive_data(data)
                head, ended = self._take()
            return head
        raise RequestTimeout(
            f"The headers were not complete after {self._settings.header_timeout} s; send them at"
            " once."
        )

    def take_behind(self) -> bytes:
        """What came with the last head, and ``conn`` has not seen. Sync."""
        behind, self._behind = self._behind, b""
        return behind

    def go_on(self, *, answered: bool, left: bytes | None = None) -> bool:
        """Make ready for the next request; False: the connection can carry none. Sync.

        :param answered: whether ``conn`` has sent the answer to the last one.
        :param left: what came behind its body, which ``conn`` has not seen; None: it has.
        """
        if left is None:
            if answered:
                if self.conn.states != _BOTH_DONE:
                    return False
                self.conn.start_next_cycle()
                return True
            if self.conn.their_state is not h11.DONE:
                return False
        elif answered and self.conn.our_state is not h11.DONE:
            return False
        data, ended = self.conn.trailing_data
        self.conn = self._parser()
        if data := (left or b"") + data:
            self.conn.receive_data(data)
        if ended:
            self.conn.receive_data(b"")
        return True

    def _take(self) -> tuple[h11.Request | None, bool]:
        """The head, if all of it has come; and whether there will be none."""
        try:
            event = self.conn.next_event()
        except h11.RemoteProtocolError as error:
            if self.input_ended:
                raise ClientGone("the client closed the connection in a request") from error
            raise refusal_for(error, self._settings.max_header_bytes) from error
        if isinstance(event, h11.Request):
            return event, False
        return None, isinstance(event, h11.ConnectionClosed)

    async def _wait_for_begin(self) -> bool:
        """Wait for the first byte of a request; False: there will be none."""
        left, _ = self.conn.trailing_data
        if left[:1] != b"\r":
            if left:
                return True
        else:
            # h11 has no way to drop what it has taken in.
            self.conn = self._parser()
            if self._feed(left):
                if self.input_ended:
                    self._pass_end()
                return True
        if self._at_once < AT_ONCE_MAX and not self._draining():
            # A client that has its answer may ask again before all that was behind it is done.
            self._at_once += 1
            data = self._input.ready()
            if data is not None:
                self.input_ended = not data
                if self.input_ended or self._feed(data):
                    return not self.input_ended
        self._at_once = 0
        with anyio.CancelScope() as self._idle:
            _limit(self._idle, self._settings.idle_timeout)
            while not self._draining():
                data = await self._input.receive()
                self.input_ended = not data
                if self.input_ended or self._feed(data):
                    self._idle = None
                    return not self.input_ended
        self._idle = None
        # The drain closes idle connections; a request that has just come would get a reset.
        ready = self._input.ready() if self._draining() else None
        return ready is not None and self._feed(ready)

    def _feed(self, data: bytes) -> bool:
        """Give h11 what came before a request has begun; whether it has by now.

        Empty lines in front are dropped: broken clients end a body with one (RFC 9112, 2.2).
        """
        if self._half_line or data[:1] == b"\r":
            data = _EMPTY_LINES.sub(b"", self._half_line + data, count=1)
        self._half_line = data if data == b"\r" else b""
        if self._half_line or not data:
            return False
        head, end, self._behind = data.partition(_HEAD_END)
        self.conn.receive_data(head + end)
        return True

    def _pass_end(self) -> None:
        """Tell h11 that nothing follows what came."""
        if behind := self.take_behind():
            self.conn.receive_data(behind)
        self.conn.receive_data(b"")

    def _parser(self) -> h11.Connection:
        return h11.Connection(h11.SERVER, max_incomplete_event_size=self._settings.max_header_bytes)


_BOTH_DONE = {h11.CLIENT: h11.DONE, h11.SERVER: h11.DONE}
_HEAD_END = b"\r\n\r\n"
_EMPTY_LINES = re.compile(rb"\A(?:\r\n)*")


def _limit(scope: anyio.CancelScope, seconds: float | None) -> None:
    scope.deadline = math.inf if seconds is None else anyio.current_time() + seconds
