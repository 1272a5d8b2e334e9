"""What goes wrong between a socket and an app.

``ClientGone`` tells an app that nobody reads any more. The rest are answers that the server gives
by itself, before or instead of the app.
"""

from __future__ import annotations

from ..errors import InvalidRequest, TilertStreamError

__all__ = (
    "ASGIViolation",
    "BindFailed",
    "ClientGone",
    "HTTPVersionNotSupported",
    "HeadersTooLarge",
    "InternalError",
    "MalformedRequest",
    "RequestTimeout",
    "StartupFailed",
    "UnsupportedRequest",
    "WriteStalled",
)


class ClientGone(OSError):
    """The client has left, or the connection to it is broken.

    An ``OSError``, which is what ASGI lets ``send`` raise for it.
    """


class WriteStalled(ClientGone):
    """The client took nothing for ``write_stall_timeout`` seconds."""


class ASGIViolation(RuntimeError):
    """The app sent a message that ASGI does not allow here."""


class StartupFailed(TilertStreamError):
    """The app's lifespan refused to start; the message is the app's own."""

    code = "startup_failed"


class BindFailed(TilertStreamError):
    """The address to listen on cannot be had."""

    code = "bind_failed"


class MalformedRequest(InvalidRequest):
    """Not HTTP/1.x."""

    code = "malformed_http"


class RequestTimeout(InvalidRequest):
    """The request did not arrive in time."""

    status = 408
    code = "request_timeout"


class HeadersTooLarge(InvalidRequest):
    """Request line and headers are over ``max_header_bytes``."""

    status = 431
    code = "headers_too_large"


class UnsupportedRequest(InvalidRequest):
    """A method or transfer coding that the server does not implement."""

    status = 501
    code = "not_implemented"


class HTTPVersionNotSupported(InvalidRequest):
    """A version other than HTTP/1.x."""

    status = 505
    code = "http_version_not_supported"


class InternalError(TilertStreamError):
    """The app raised, or returned without an answer; the log has the reason."""
