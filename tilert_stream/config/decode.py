"""A decode node: what ``python -m tilert_stream.serve decode`` is told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path  # noqa: TC003 - option types are read at run time
from typing import Annotated, Literal

from .cluster import TransportOptions
from .engine import DecodeOptions
from .option import Option
from .server import HostOptions, LogOptions

__all__ = ("DecodeConfig",)


@dataclass(frozen=True, kw_only=True)
class _Ports(HostOptions):
    ctrl_port: Annotated[
        int,
        Option(
            "Listen",
            "Port on which prefill nodes hand their KV caches over; 0 takes any free one.",
            least=0,
            most=65535,
        ),
    ] = 5556
    http_port: Annotated[
        int,
        Option("Listen", "Port on which routers call; 0 takes any free one.", least=0, most=65535),
    ] = 5557


@dataclass(frozen=True, kw_only=True)
class _Landing(TransportOptions):
    pd_dialect: Annotated[
        Literal["tilert-stream", "tilert-pd"],
        Option(
            "Cluster",
            "What prefill nodes speak: our own dialect, or that of TileRT's vLLM connector and"
            " router, for MLA models over nixl or mooncake.",
        ),
    ] = "tilert-stream"
    regions: Annotated[
        int | None,
        Option(
            "Cluster",
            "Landing regions for KV caches on their way; each has room for max_seq_len tokens.",
            default="slots and 2 more",
            least=1,
        ),
    ] = None
    landing_memory: Annotated[
        Literal["host", "device"],
        Option(
            "Cluster",
            "Where KV caches land: in host memory, or in that of the engine's CUDA device, as"
            " TileRT's own NIXL senders need it; over nixl alone.",
        ),
    ] = "host"
    senders: Annotated[
        int,
        Option(
            "Cluster",
            "Tensor-parallel ranks of prefill, each of which sends its part of a KV cache.",
            least=1,
            most=1024,
        ),
    ] = 1
    advertise_host: Annotated[
        str | None,
        Option(
            "Cluster",
            "Name or address by which prefill nodes reach this one's transport.",
            default="host, or this machine's name where that takes any address",
        ),
    ] = None
    reservation_ttl: Annotated[
        float,
        Option(
            "Cluster",
            "Seconds that a slot stays reserved for a router that is not heard of.",
            least=0.001,
        ),
    ] = 30.0
    kv_timeout: Annotated[
        float,
        Option("Cluster", "Seconds that a request waits for its KV cache, at most.", least=0.001),
    ] = 120.0


@dataclass(frozen=True, kw_only=True)
class _Weights(DecodeOptions):
    model_weights_dir: Annotated[
        Path | None,
        Option(
            "Model",
            "Folder of the weights that TileRT's converter wrote.",
            default="none; --engine tilert needs one",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class DecodeConfig(LogOptions, _Landing, _Weights, _Ports):
    """One decode node.

    :raises ~tilert_stream.errors.ConfigError: a value is out of its range.
    """
