"""HTTP/1.1 on non-blocking sockets, for asyncio and trio: serves any ASGI app."""

from __future__ import annotations

from .errors import BindFailed, ClientGone, StartupFailed, WriteStalled
from .ledger import ServerStatistics
from .server import Server, run_until_signalled, serve
from .settings import ServerSettings

__all__ = (
    "BindFailed",
    "ClientGone",
    "Server",
    "ServerSettings",
    "ServerStatistics",
    "StartupFailed",
    "WriteStalled",
    "run_until_signalled",
    "serve",
)
