"""The head of an answer: bytes in, status, headers and framing out.

A plain head that one read has brought whole is read here, at a tenth of h11's cost. Whatever is not
plain (folded lines, two lengths, an interim answer, another protocol) is left to h11, which also
says what is wrong with it; both make the same ``Head``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from ..framing import choose_framing
from .body import body_reader

if TYPE_CHECKING:
    from .body import BodyReader

__all__ = ("Head", "make_head", "read_plain_head")

_STATUS: Final = re.compile(rb"HTTP/1\.1 ([2-5][0-9]{2})(?: [\t -~]*)?")
_FIELD: Final = re.compile(
    rb"([-!#$%&'*+.^_`|~0-9A-Za-z]+):[ \t]*((?:[!-~](?:[\t -~]*[!-~])?)?)[ \t]*"
)
_LENGTH: Final = re.compile(rb"[0-9]{1,18}")


class Head(NamedTuple):
    """The head of an answer."""

    status: int
    headers: list[tuple[bytes, bytes]]
    """Names in lower case."""
    body: BodyReader
    left: bytes
    """What was read beyond the head."""
    keep_alive: bool


def read_plain_head(data: bytes, *, limit: int, bodiless: bool) -> Head | None:
    """The head that ``data`` begins with; None: h11 is to read it.

    :param limit: bytes of a head.
    :param bodiless: the request was HEAD.
    """
    end = data.find(b"\r\n\r\n")
    if not 0 <= end <= limit:
        return None
    first, *lines = data[:end].split(b"\r\n")
    status = _STATUS.fullmatch(first)
    if status is None:
        return None
    headers: list[tuple[bytes, bytes]] = []
    framed = False
    for line in lines:
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
    return make_head(int(status[1]), b"1.1", headers, data[end + 4 :], bodiless=bodiless)


def make_head(
    status: int,
    http_version: bytes,
    headers: list[tuple[bytes, bytes]],
    left: bytes,
    *,
    bodiless: bool,
) -> Head:
    """Find out how the body ends, and whether the connection outlives it.

    :param headers: checked, names in lower case.
    """
    values = dict(headers)
    chunked = b"transfer-encoding" in values
    framing = choose_framing(status, values.keys(), bodiless=bodiless, chunks_allowed=chunked)
    body = body_reader(framing, int(values.get(b"content-length", b"0")))
    closes = (
        http_version < b"1.1"
        # Two ends of one body: whoever is between may have seen the other (RFC 9112, 6.3).
        or (chunked and b"content-length" in values)
        or any(name == b"connection" and b"close" in value.lower() for name, value in headers)
    )
    return Head(status, headers, body, left, keep_alive=not closes and framing != "close")
