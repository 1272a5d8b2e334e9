"""A prefill node: what ``python -m tilert_stream.serve prefill`` is told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from .cluster import TransportOptions
from .engine import EngineOptions
from .option import Option
from .server import HostOptions, KeyOptions, LogOptions

__all__ = ("PrefillConfig",)


@dataclass(frozen=True, kw_only=True)
class _Port(HostOptions):
    port: Annotated[
        int,
        Option("Listen", "Port on which routers call; 0 takes any free one.", least=0, most=65535),
    ] = 8100


@dataclass(frozen=True, kw_only=True)
class _Staging(TransportOptions):
    stagings: Annotated[
        int,
        Option(
            "Cluster",
            "Finished prompts whose KV cache may wait to be sent; each has room for max_seq_len"
            " tokens.",
            least=1,
        ),
    ] = 4
    send_timeout: Annotated[
        float,
        Option("Cluster", "Seconds that sending one KV cache may take.", least=0.001),
    ] = 60.0


@dataclass(frozen=True, kw_only=True)
class PrefillConfig(LogOptions, KeyOptions, _Staging, EngineOptions, _Port):
    """One prefill node.

    :raises ~tilert_stream.errors.ConfigError: a value is out of its range.
    """
