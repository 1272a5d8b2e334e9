"""HTTP/1.1 on non-blocking sockets, the asking side: what a router talks to its nodes with."""

from __future__ import annotations

from .begun import Begun
from .client import ClientStatistics, HTTPClient
from .errors import (
    ConnectFailed,
    UpstreamClosed,
    UpstreamError,
    UpstreamInvalid,
    UpstreamTimeout,
)
from .origin import Origin
from .response import Response

__all__ = (
    "Begun",
    "ClientStatistics",
    "ConnectFailed",
    "HTTPClient",
    "Origin",
    "Response",
    "UpstreamClosed",
    "UpstreamError",
    "UpstreamInvalid",
    "UpstreamTimeout",
)
