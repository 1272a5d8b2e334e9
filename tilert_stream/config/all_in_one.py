"""Everything in one process: what ``python -m tilert_stream.serve`` is told."""

from __future__ import annotations

from dataclasses import dataclass

from .engine import DecodeOptions
from .request import PipelineOptions, QueueOptions
from .server import HTTPOptions, ListenOptions, LogOptions

__all__ = ("ServeConfig",)


# A dataclass takes the fields of its last base first: this is the order of --help, read upwards.
@dataclass(frozen=True, kw_only=True)
class ServeConfig(
    PipelineOptions,
    LogOptions,
    HTTPOptions,
    QueueOptions,
    DecodeOptions,
    ListenOptions,
):
    """One process: router, prefill and decode.

    :raises ~tilert_stream.errors.ConfigError: a value is out of its range.
    """
