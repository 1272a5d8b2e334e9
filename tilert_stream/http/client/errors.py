"""What goes wrong between this process and a server that it asks.

Each is an answer that our own client can get, as it stands: the server asked is named by its
label, never by its address.
"""

from __future__ import annotations

from ...errors import TilertStreamError

__all__ = ("ConnectFailed", "UpstreamClosed", "UpstreamError", "UpstreamInvalid", "UpstreamTimeout")


class UpstreamError(TilertStreamError):
    """A server that this one depends on did not do its part."""

    status = 502
    code = "upstream_failed"


class ConnectFailed(UpstreamError):
    """No connection: refused, no route, no such name, or no TLS. Nothing was asked."""

    status = 503
    code = "upstream_unreachable"
    retryable = True


class UpstreamClosed(UpstreamError):
    """The connection ended before the answer did."""

    code = "upstream_closed"
    retryable = True


class UpstreamInvalid(UpstreamError):
    """What came back is not what was to come: no HTTP/1.1, too large, or not understood."""

    code = "upstream_invalid"


class UpstreamTimeout(UpstreamError):
    """The server did not answer, or did not read, in time."""

    status = 504
    code = "upstream_timeout"
    retryable = True
