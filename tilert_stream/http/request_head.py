"""The head of a request, read: what is asked for, and what that asks of HTTP.

Most heads are plain, and two regular expressions take them apart: on cold caches that costs a
quarter of what h11 does. What is not plain, be it only unusual, h11 reads or refuses. The plain
ones are a subset of what h11 takes, read alike to the byte.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    import h11

__all__ = ("RequestHead", "head_of", "plain_head")

_PLAIN: Final = re.compile(
    rb"(GET|POST|PUT|PATCH|DELETE|OPTIONS) (/[!-~]*+) HTTP/1\.1\r\n"
    # Possessive: a long line that does not fit is gone through once.
    rb"((?:[-!#$%&'*+.^_`|~0-9A-Za-z]++:[\t -~]*+\r\n)++)\r\n"
)
_FIELD: Final = re.compile(rb"([^:]+):([^\r]*)\r\n")
_UNUSUAL_FIELDS: Final = frozenset({b"expect", b"transfer-encoding", b"upgrade"})
_UNUSUAL_METHODS: Final = frozenset({b"CONNECT", b"HEAD"})
_LENGTH_DIGITS: Final = 20
"""So many has the longest Content-Length that h11 takes."""


class RequestHead(NamedTuple):
    """A head that is valid HTTP/1.x."""

    method: bytes
    target: bytes
    http_version: bytes
    """``b"1.1"``, as h11 has it."""
    headers: list[tuple[bytes, bytes]]
    """Names in lower case, and values without white space around them; in the order received."""
    plain: bool
    """h11 need not know of the answer: nothing is asked of the connection but its end."""
    closes: bool
    """The client wants the connection to end with the answer."""
    length: int | None
    """Bytes of the body, where h11 need not know of that either; None: where it must."""


def plain_head(data: bytes) -> RequestHead | None:
    """Read a head up to its blank line; None: h11 must look."""
    match = _PLAIN.fullmatch(data)
    if match is None:
        return None
    method, target, block = match.groups()
    headers = [(name.lower(), value.strip()) for name, value in _FIELD.findall(block)]
    fields = dict(headers)
    length = fields.get(b"content-length", b"0")
    fate = fields.get(b"connection", b"keep-alive").lower()
    if (
        len(fields) != len(headers)
        or b"host" not in fields
        or not _UNUSUAL_FIELDS.isdisjoint(fields)
        or not length.isdigit()
        or len(length) > _LENGTH_DIGITS
        or fate not in (b"close", b"keep-alive")
    ):
        return None
    closes = fate == b"close"
    return RequestHead(
        method, target, b"1.1", headers, plain=True, closes=closes, length=int(length)
    )


def head_of(request: h11.Request) -> RequestHead:
    """Take over what h11 has read."""
    plain = request.http_version == b"1.1" and request.method not in _UNUSUAL_METHODS
    closes = chunked = False
    length = 0
    for name, value in request.headers:
        if name == b"content-length":
            length = int(value)
        elif name == b"connection":
            fate = value.lower()
            closes = closes or fate == b"close"
            plain = plain and fate in (b"close", b"keep-alive")
        elif name == b"transfer-encoding":
            chunked = True
        elif name in _UNUSUAL_FIELDS:
            plain = False
    return RequestHead(
        request.method,
        request.target,
        request.http_version,
        list(request.headers),
        plain=plain,
        closes=closes,
        length=length if plain and not chunked else None,
    )
