"""A router: what ``python -m tilert_stream.serve router`` is told."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from .cluster import ClusterOptions
from .engine import WindowOptions
from .option import Option
from .request import PipelineOptions, QueueOptions
from .server import HTTPOptions, ListenOptions, LogOptions

__all__ = ("RouterConfig",)


@dataclass(frozen=True, kw_only=True)
class _Nodes(ClusterOptions):
    prefill_nodes: Annotated[
        tuple[str, ...],
        Option(
            "Cluster",
            "URL of a prefill node (vLLM, or ours): http://HOST:PORT.",
            default="none; at least one is needed",
            singular="prefill",
        ),
    ] = ()
    decode_nodes: Annotated[
        tuple[str, ...],
        Option(
            "Cluster",
            "A decode node: HOST:CTRL:HTTP, an IPv6 address in brackets.",
            default="none; at least one is needed",
            singular="decode",
        ),
    ] = ()
    prefill_model: Annotated[
        str | None,
        Option(
            "Cluster",
            "The name that prefill nodes know the model by.",
            default="the first served name",
        ),
    ] = None
    prefill_api_key: Annotated[
        str | None,
        Option("Cluster", "Key that prefill nodes want.", default="they want none", secret=True),
    ] = field(default=None, repr=False)


@dataclass(frozen=True, kw_only=True)
class RouterConfig(
    PipelineOptions, LogOptions, HTTPOptions, QueueOptions, _Nodes, WindowOptions, ListenOptions
):
    """One router.

    :raises ~tilert_stream.errors.ConfigError: a value is out of its range.
    """
