"""The head of an answer: bytes in, status, headers and framing out.

A plain head that one read has brought whole is read here, at a tenth of h11's cost, and a short one
once: a server says the same few things again and again. Whatever is not plain (folded lines, two
lengths, an interim answer, another protocol) is left to h11, which also says what is wrong with it;
both make the same ``Head``.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from ..framing import choose_framing
from .body import body_reader

if TYPE_CHECKING:
    from ..framing import Framing
    from .body import BodyReader

__all__ = ("Head", "Headers", "make_head", "read_plain_head")

REMEMBERED: Final = 256
"""So many heads are remembered, of all servers together."""
REMEMBERED_BYTES: Final = 1024
"""The longest of them."""

_STATUS: Final = re.compile(rb"HTTP/1\.1 ([2-5][0-9]{2})(?: [\t -~]*)?")
_FIELD: Final = re.compile(
    rb"([-!#$%&'*+.^_`|~0-9A-Za-z]+):[ \t]*((?:[!-~](?:[\t -~]*[!-~])?)?)[ \t]*"
)
_LENGTH: Final = re.compile(rb"[0-9]{1,18}")


Headers: TypeAlias = "tuple[tuple[bytes, bytes], ...]"
"""Names in lower case, and values."""


class Head(NamedTuple):
    """The head of an answer."""

    status: int
    headers: Headers
    body: BodyReader
    left: bytes
    """What was read beyond the head."""
    keep_alive: bool


class _Meaning(NamedTuple):
    """What a head says, whichever answer it is that of: nobody can change it."""

    status: int
    headers: Headers
    framing: Framing
    length: int
    """That of the Content-Length."""
    keep_alive: bool

    def head(self, left: bytes) -> Head:
        """The head of one answer, which has its own reader of the body."""
        body = body_reader(self.framing, self.length)
        return Head(self.status, self.headers, body, left, self.keep_alive)


def read_plain_head(data: bytes, *, limit: int, bodiless: bool) -> Head | None:
    """The head that ``data`` begins with; None: h11 is to read it.

    :param limit: bytes of a head.
    :param bodiless: the request was HEAD.
    """
    end = data.find(b"\r\n\r\n")
    if not 0 <= end <= limit:
        return None
    read = _read_once if end <= REMEMBERED_BYTES else _read
    meaning = read(data[:end], bodiless)
    return None if meaning is None else meaning.head(data[end + 4 :])


def _read(lines: bytes, bodiless: bool) -> _Meaning | None:  # noqa: FBT001 - a key of what is remembered
    """What ``lines`` say; None: h11 is to read them."""
    first, *fields = lines.split(b"\r\n")
    status = _STATUS.fullmatch(first)
    if status is None:
        return None
    headers: list[tuple[bytes, bytes]] = []
    framed = False
    for line in fields:
        field = _FIELD.fullmatch(line)
        if field is None:
            return None
        name, value = field[1].lower(), field[2]
        if name in (b"content-length", b"transfer-encoding"):
            plain = _LENGTH.fullmatch(value) if name == b"content-length" else value == b"chunked"
            if framed or not plain:
                return None
            framed = True
        headers.append((name, value))
    return _meaning(int(status[1]), b"1.1", tuple(headers), bodiless=bodiless)


_read_once = lru_cache(maxsize=REMEMBERED)(_read)


def make_head(
    status: int, http_version: bytes, headers: Headers, left: bytes, *, bodiless: bool
) -> Head:
    """Find out how the body ends, and whether the connection outlives it.

    :param headers: checked.
    """
    return _meaning(status, http_version, headers, bodiless=bodiless).head(left)


def _meaning(status: int, http_version: bytes, headers: Headers, *, bodiless: bool) -> _Meaning:
    values = dict(headers)
    chunked = b"transfer-encoding" in values
    framing = choose_framing(status, values.keys(), bodiless=bodiless, chunks_allowed=chunked)
    length = int(values.get(b"content-length", b"0"))
    closes = (
        http_version < b"1.1"
        # Two ends of one body: whoever is between may have seen the other (RFC 9112, 6.3).
        or (chunked and b"content-length" in values)
        or any(name == b"connection" and b"close" in value.lower() for name, value in headers)
    )
    return _Meaning(status, headers, framing, length, not closes and framing != "close")
