"""An error in, OpenAI's nested error object and its headers out."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from ..errors import AuthenticationFailed
from .encoding import dumps

if TYPE_CHECKING:
    from ..errors import TilertStreamError

__all__ = ("error_body", "error_headers", "error_object")

RETRY_AFTER_MAX: Final = 120.0
"""Seconds. The openai SDK does not retry at all where it is asked to wait longer."""


def error_object(error: TilertStreamError) -> dict[str, object]:
    """``{"error": {message, type, param, code}}``: a response's body and a stream's last event."""
    return {
        "error": {
            "message": error.message,
            "type": error.type,
            "param": error.param,
            "code": error.code,
        }
    }


def error_body(error: TilertStreamError) -> bytes:
    """``error_object`` as JSON."""
    return dumps(error_object(error))


def error_headers(error: TilertStreamError) -> list[tuple[bytes, bytes]]:
    """The headers of an error response, names in lower case.

    ``retry-after`` is in whole seconds, at least 1 (RFC 9110, 10.2.3); ``retry-after-ms``, which
    the openai SDK reads first, is exact. A 401 names the scheme (RFC 9110, 11.6.1).
    """
    headers = [(b"content-type", b"application/json")]
    if error.retry_after is not None:
        seconds = min(max(error.retry_after, 0.0), RETRY_AFTER_MAX)
        headers += [
            (b"retry-after", b"%d" % max(1, math.ceil(seconds))),
            (b"retry-after-ms", b"%d" % max(1, math.ceil(seconds * 1000))),
        ]
    if isinstance(error, AuthenticationFailed):
        headers.append((b"www-authenticate", b"Bearer"))
    return headers
