"""Options of every role that has an HTTP server."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from pathlib import Path  # noqa: TC003 - option types are read at run time
from typing import Annotated, Literal

from .option import Option, Options

__all__ = ("HTTPOptions", "HostOptions", "KeyOptions", "ListenOptions", "LogOptions")


@dataclass(frozen=True, kw_only=True)
class HostOptions(Options):
    """Where a server listens, and on which event loop."""

    host: Annotated[
        str, Option("Listen", "Name or address to listen on; '::' takes IPv6 and IPv4.")
    ] = "127.0.0.1"
    ssl_certfile: Annotated[
        Path | None,
        Option("Listen", "PEM file of a certificate and its chain: TLS only.", default="no TLS"),
    ] = None
    ssl_keyfile: Annotated[
        Path | None,
        Option(
            "Listen",
            "PEM file of its key, without a passphrase.",
            default="in the certificate's file",
        ),
    ] = None
    backend: Annotated[
        Literal["asyncio", "trio"], Option("Listen", "Which event loop runs the server.")
    ] = "asyncio"
    uvloop: Annotated[
        bool,
        Option(
            "Listen",
            "Whether uvloop, where it is installed, runs the asyncio backend.",
            default="it does",
        ),
    ] = True


@dataclass(frozen=True, kw_only=True)
class ListenOptions(HostOptions):
    """Where clients are listened to."""

    port: Annotated[
        int, Option("Listen", "Port to listen on; 0 takes any free one.", least=0, most=65535)
    ] = 8000
    uds: Annotated[
        str | None,
        Option("Listen", "Path of a Unix socket to listen on, in place of host and port."),
    ] = None
    workers: Annotated[
        int,
        Option(
            "Listen",
            "Processes that share the port; more than 1 only for a role without an engine.",
            least=1,
            most=1024,
        ),
    ] = 1


@dataclass(frozen=True, kw_only=True)
class KeyOptions(Options):
    """Who may ask."""

    api_keys: Annotated[
        tuple[str, ...],
        Option(
            "HTTP",
            "Key that clients must send. Other users of the machine can read a command line:"
            " prefer the environment or a file.",
            default="nobody needs one",
            singular="api_key",
            secret=True,
        ),
    ] = field(default=(), repr=False)
    api_key_file: Annotated[
        Path | None, Option("HTTP", "File of further keys, one a line; # begins a comment line.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class HTTPOptions(KeyOptions):
    """How clients are talked to."""

    cors_origins: Annotated[
        tuple[str, ...],
        Option(
            "HTTP",
            "Origin whose pages may read the answers, such as https://chat.example; * is all.",
            default="none",
            singular="cors_origin",
        ),
    ] = ()
    keep_alive_timeout: Annotated[
        float,
        Option("HTTP", "Seconds that a connection without a request stays open.", least=0),
    ] = 75.0
    header_timeout: Annotated[
        float,
        Option("HTTP", "Seconds that the headers of a request, once begun, may take.", least=0),
    ] = 10.0
    body_timeout: Annotated[
        float,
        Option("HTTP", "Seconds that a request's body may pause.", least=0),
    ] = 30.0
    write_stall_timeout: Annotated[
        float,
        Option("HTTP", "Seconds after which a client that takes nothing is dropped.", least=0),
    ] = 30.0
    allow_half_close: Annotated[
        bool,
        Option("HTTP", "Answer a client that has closed its sending side; else it has gone."),
    ] = False
    coalesce_ms: Annotated[
        float,
        Option("HTTP", "Milliseconds to wait for more tokens before each write.", least=0),
    ] = 0.0
    heartbeat: Annotated[
        float,
        Option(
            "HTTP",
            "Seconds of silence after which a stream gets a comment line, for proxies that close"
            " what is idle. Some clients fail on one.",
            default="never",
            least=1,
        ),
    ] = inf
    done_after_error: Annotated[
        bool,
        Option("HTTP", "End a failed stream with [DONE] in place of cutting the connection."),
    ] = False


@dataclass(frozen=True, kw_only=True)
class LogOptions(Options):
    """What is logged."""

    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Option("Log", "Least level that is logged.")
    ] = "info"
    access_log: Annotated[
        bool,
        Option("Log", "Whether each request is logged, one line each.", default="it is"),
    ] = True
    request_log: Annotated[
        str | None,
        Option(
            "Telemetry",
            "File that a JSON line of each request is appended to, with its timeline; - is stdout.",
            default="none",
        ),
    ] = None
    metrics_aliases: Annotated[
        Literal["none", "vllm"],
        Option("Telemetry", "Whose names /metrics has beside its own."),
    ] = "none"
