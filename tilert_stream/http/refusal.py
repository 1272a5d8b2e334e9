"""The server's own answers: an error in, the bytes of a whole response out."""

from __future__ import annotations

import time
from email.utils import formatdate
from http import HTTPStatus
from typing import TYPE_CHECKING

import h11

from ..openai.errors import error_body, error_headers
from .errors import HeadersTooLarge, MalformedRequest, UnsupportedRequest

if TYPE_CHECKING:
    from ..errors import TilertStreamError

__all__ = ("REASONS", "http_date", "refusal", "refusal_for")

REASONS = {status.value: status.phrase.encode("ascii") for status in HTTPStatus}

_date: tuple[int, bytes] = (0, b"")


def http_date() -> bytes:
    """Now, as a ``Date`` header (RFC 9110, 5.6.7)."""
    global _date
    now = int(time.time())
    if _date[0] != now:
        _date = (now, formatdate(now, usegmt=True).encode("ascii"))
    return _date[1]


def refusal(error: TilertStreamError, request_id: str, *, head_only: bool = False) -> bytes:
    """Render ``error`` as a response that closes the connection.

    :param request_id: sent as ``x-request-id``: the answer and its log line find each other.

    The body is OpenAI's nested error object. A connection object of its own makes the bytes, so
    that they can be had whatever state the client's request has left the real one in.
    """
    body = error_body(error)
    headers = [
        *error_headers(error),
        (b"content-length", b"%d" % len(body)),
        (b"date", http_date()),
        (b"x-request-id", request_id.encode("ascii")),
        (b"connection", b"close"),
    ]
    head = h11.Response(
        status_code=error.status,
        headers=headers,
        reason=REASONS[error.status],
    )
    rendered = h11.Connection(h11.SERVER).send(head)
    return rendered if head_only else rendered + body


def refusal_for(error: h11.RemoteProtocolError, max_header_bytes: int) -> TilertStreamError:
    """The answer to what h11 could not read.

    Of h11's message only the part that does not quote the request is passed on: a broken header
    line may hold a key.
    """
    if error.error_status_hint == HeadersTooLarge.status:
        return HeadersTooLarge(
            f"The request line and headers are longer than {max_header_bytes} bytes; "
            "send fewer or shorter headers."
        )
    what = str(error).partition(":")[0]
    if error.error_status_hint == UnsupportedRequest.status:
        return UnsupportedRequest(
            f"The transfer coding is not supported ({what}); send chunked or a Content-Length.",
            param="Transfer-Encoding",
        )
    return MalformedRequest(f"The request is not valid HTTP/1.1: {what}.")
