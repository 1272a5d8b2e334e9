"""The body of one request: bytes from behind its head in, what the app gets of them out.

A body with a Content-Length is counted here. h11 reads it where it is in chunks, or something
unusual is asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import h11

from ..errors import BodyTooLarge
from .refusal import refusal_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from .request_head import RequestHead
    from .settings import ServerSettings

__all__ = ("RequestBody",)


class RequestBody:
    """What has come of a body, and what has come behind it.

    :param request: with a Content-Length that is allowed, if any.
    :param parser: h11, having read its head; called only where it must read the body too.
    """

    __slots__ = (
        "_conn",
        "_max_body_bytes",
        "_max_header_bytes",
        "_missing",
        "_seen",
        "behind",
        "complete",
        "content",
    )

    def __init__(
        self, request: RequestHead, parser: Callable[[], h11.Connection], settings: ServerSettings
    ) -> None:
        self._max_body_bytes = settings.max_body_bytes
        self._max_header_bytes = settings.max_header_bytes
        self._conn = parser() if request.length is None else None
        self._missing = request.length or 0
        self._seen = 0
        self.content = bytearray()
        """For the app to take."""
        self.complete = False
        self.behind = b""
        """What came behind its end: the next request."""

    @property
    def waits_for_100_continue(self) -> bool:
        """Whether the client sends nothing of it until it is told to go on."""
        return (
            not self.complete
            and self._conn is not None
            and self._conn.they_are_waiting_for_100_continue
        )

    def go_ahead(self) -> bytes:
        """What is to be sent to a client that waits; empty if it does not."""
        if self._conn is None or not self.waits_for_100_continue:
            return b""
        return self._conn.send(h11.InformationalResponse(status_code=100, headers=[]))

    def feed(self, data: bytes) -> None:
        """Take what has been read; nothing at first, for what h11 has had with the head.

        :raises ~tilert_stream.errors.TilertStreamError: the body is broken or too large.
        """
        if self.complete:
            self.behind += data
        elif self._conn is None:
            self.content += data[: self._missing]
            self.behind = data[self._missing :]
            self._missing -= len(data) - len(self.behind)
            self.complete = not self._missing
        else:
            if data:
                self._conn.receive_data(data)
            self._parse(self._conn)

    def _parse(self, conn: h11.Connection) -> None:
        while not self.complete:
            try:
                event = conn.next_event()
            except h11.RemoteProtocolError as error:
                raise refusal_for(error, self._max_header_bytes) from error
            if isinstance(event, h11.Data):
                self.content += event.data
                self._seen += len(event.data)
                if self._seen > self._max_body_bytes:
                    raise BodyTooLarge(f"The body is longer than {self._max_body_bytes} bytes.")
            elif isinstance(event, h11.EndOfMessage):
                self.complete = True
                self.behind = conn.trailing_data[0]
            else:
                return
