"""Options of the roles that talk to each other."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path  # noqa: TC003 - option types are read at run time
from typing import Annotated

from .option import Option, Options

__all__ = ("ClusterOptions", "TransportOptions")


@dataclass(frozen=True, kw_only=True)
class ClusterOptions(Options):
    """Who belongs together."""

    cluster_key: Annotated[
        str | None,
        Option(
            "Cluster",
            "Secret that the nodes of one cluster share. Other users of the machine can read a"
            " command line: prefer the environment or a file.",
            default="none: whoever reaches a node's ports may use it",
            secret=True,
        ),
    ] = field(default=None, repr=False)
    cluster_key_file: Annotated[
        Path | None, Option("Cluster", "File with the cluster key in its first line.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class TransportOptions(ClusterOptions):
    """How KV caches travel."""

    transport: Annotated[
        str,
        Option(
            "Cluster",
            "How KV caches travel: shm, tcp, nixl, mooncake, or a plugin's name; auto is shm on"
            " one host, else nixl where both nodes have it, else tcp.",
        ),
    ] = "auto"
