"""The head of an answer: an ASGI message in, bytes out.

h11 writes the status line and the fields of the framing, and keeps its state by them; it checks
every field four times on the way. Most answers are plain, and checked here at once; one that is not
(a field of the connection, any unusual byte) is left to h11 altogether. The head of a plain answer
to a plain request need not pass h11 at all.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import h11

from .framing import choose_framing
from .refusal import REASONS, http_date

if TYPE_CHECKING:
    from starlette.types import Message

    from .framing import Framing

__all__ = ("AnswerHead",)

Fields = list[tuple[bytes, bytes]]

_PLAIN: Final = re.compile(
    rb"(?:[-!#$%&'*+.^_`|~0-9A-Za-z]+: [!-~](?:[\t -~]*[!-~])?\r\n)*"  # RFC 9110, 5.1 and 5.5
)
_OF_THE_CONNECTION: Final = frozenset({b"transfer-encoding", b"connection"})
_LENGTH: Final = re.compile(rb"[0-9]{1,20}")


class AnswerHead:
    """What an app has said of its answer.

    :param message: ``http.response.start``.
    :raises h11.LocalProtocolError: a field or the status is invalid.
    """

    __slots__ = ("_fields", "_names", "_plain", "length", "status")

    def __init__(self, message: Message) -> None:
        self.status: int = message["status"]
        fields: Fields = [(bytes(name), bytes(value)) for name, value in message.get("headers", ())]
        names = {name.lower() for name, _ in fields}
        if b"date" not in names:
            fields.append((b"date", http_date()))
        self._fields = fields
        self._names = names
        self.length = _length(fields) if b"content-length" in names else None
        """Bytes of the body, if it says so in the plain way."""
        self._plain = b"".join([b"%b: %b\r\n" % field for field in fields])
        if (
            not 200 <= self.status <= 599
            or names & _OF_THE_CONNECTION
            or (self.length is None and b"content-length" in names)
            or not _PLAIN.fullmatch(self._plain)
            # A value with a line end in it would pass for two fields.
            or self._plain.count(b"\r\n") != len(fields)
        ):
            self._plain = b""
            _response(self.status, fields)  # raises now, and not with the first byte of the body

    @property
    def request_id(self) -> str | None:
        """The answer's ``x-request-id``."""
        for name, value in self._fields:
            if name.lower() == b"x-request-id":
                return value.decode("latin-1")
        return None

    def framing(self, *, bodiless: bool, chunks_allowed: bool) -> Framing:
        """See ``choose_framing``."""
        return choose_framing(
            self.status, self._names, bodiless=bodiless, chunks_allowed=chunks_allowed
        )

    def render(self, conn: h11.Connection, *, close: bool) -> bytes:
        """Its bytes; ``conn`` has sent it then.

        :param close: announce that the connection ends with this answer.
        """
        if close:
            kept = [field for field in self._fields if field[0].lower() != b"connection"]
            return conn.send(_response(self.status, [*kept, (b"connection", b"close")]))
        if not self._plain or self.length is not None:
            return conn.send(_response(self.status, self._fields))
        return conn.send(_response(self.status, []))[:-2] + self._plain + b"\r\n"

    def plain(self, framing: Framing, *, close: bool) -> bytes | None:
        """Its bytes, as the answer to a plain request; None where h11 must write them.

        :param close: announce that the connection ends with this answer.
        """
        if not self._plain or framing == "none":
            return None
        return b"HTTP/1.1 %d %b\r\n%b%b%b\r\n" % (
            self.status,
            REASONS.get(self.status, b""),
            b"Transfer-Encoding: chunked\r\n" if framing == "chunked" else b"",
            b"Connection: close\r\n" if close else b"",
            self._plain,
        )


def _response(status: int, fields: Fields) -> h11.Response:
    return h11.Response(status_code=status, headers=fields, reason=REASONS.get(status, b""))


def _length(fields: Fields) -> int | None:
    """What ``fields`` give as the body's length; None where they do so in an unusual way."""
    lengths = [value for name, value in fields if name.lower() == b"content-length"]
    return int(lengths[0]) if len(lengths) == 1 and _LENGTH.fullmatch(lengths[0]) else None
