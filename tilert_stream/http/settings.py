"""Limits and time-outs of the HTTP server: CLI or code in, one frozen object out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..errors import ConfigError

__all__ = ("ServerSettings",)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """What a ``Server`` is told. Times are seconds, sizes bytes; a time of None means no limit.

    :raises ~tilert_stream.errors.ConfigError: a value is out of its range.
    """

    host: str = "127.0.0.1"
    """Name or address to listen on. ``"::"`` listens on IPv6 and IPv4; a name is bound at every
    address that it resolves to."""
    port: int = 8000
    """0: any free port, the same one for every address of ``host``."""
    uds: str | None = None
    """Path of a Unix socket to listen on, in place of ``host`` and ``port``."""
    ssl_certfile: str | None = None
    """PEM file of the certificate and those of its issuers; set, the server speaks TLS only."""
    ssl_keyfile: str | None = None
    """PEM file of its private key, without a passphrase; None: it stands in ``ssl_certfile``."""
    reuse_port: bool = False
    """Whether other processes may listen on the same port: the kernel spreads the connections."""
    backlog: int = 2048
    root_path: str = ""
    """The prefix under which a proxy publishes the app."""
    lifespan: Literal["auto", "on", "off"] = "auto"
    """``auto``: an app that does not speak the lifespan protocol is served without it."""

    max_connections: int | None = None
    """At so many open connections new ones wait in the kernel's backlog."""
    max_header_bytes: int = 64 * 1024
    """Request line and headers together; more is answered 431."""
    max_body_bytes: int = 32 * 1024 * 1024
    """More is answered 413: by Content-Length before any of it is read, else by count."""
    max_pipelined_bytes: int = 64 * 1024
    """Bytes after a request, read while it is answered; more closes the connection."""

    header_timeout: float | None = 10.0
    """From the first byte of a request to the end of its headers; also for the TLS handshake."""
    body_timeout: float | None = 30.0
    """Without one byte of a body that is not complete."""
    idle_timeout: float | None = 75.0
    """Of a connection without a request."""
    write_stall_timeout: float | None = 30.0
    """Without the client taking a byte, while there are some for it."""
    drain_delay: float = 0.0
    """Between readiness turning false and the drain: until then everybody is served as before, so
    that a balancer has time to look elsewhere."""
    drain_timeout: float | None = 30.0
    """What answers in flight are given to end, once the drain has begun."""
    linger_timeout: float = 2.0
    """How long a closing connection goes on reading, so that its answer is not lost to a reset;
    also the longest wait for a cut close-delimited answer to reach the client."""
    shutdown_timeout: float = 10.0
    """What the app's lifespan is given to shut down."""

    allow_half_close: bool = False
    """Whether a client that has closed its sending side still waits for its answer. If not, and
    by default, read-EOF means that it has gone."""
    access_log: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port is {self.port}; it must be from 0 to 65535.", param="port")
        if self.ssl_keyfile is not None and self.ssl_certfile is None:
            raise ConfigError(
                "ssl_keyfile is given without ssl_certfile; give the certificate too.",
                param="ssl_certfile",
            )
        for name in ("backlog", "max_connections", "max_header_bytes"):
            self._at_least(name, 1)
        for name in ("max_body_bytes", "max_pipelined_bytes"):
            self._at_least(name, 0)
        for name in _TIMES:
            self._at_least(name, 0)

    def _at_least(self, name: str, least: int) -> None:
        value: float | None = getattr(self, name)
        if value is not None and not value >= least:
            raise ConfigError(f"{name} is {value}; it must be {least} or more.", param=name)


_TIMES = (
    "header_timeout",
    "body_timeout",
    "idle_timeout",
    "write_stall_timeout",
    "drain_delay",
    "drain_timeout",
    "linger_timeout",
    "shutdown_timeout",
)
