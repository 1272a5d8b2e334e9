"""Everything in one process: what ``python -m tilert_stream.serve`` is told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from .engine import DecodeOptions
from .option import Option
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

    model: Annotated[
        str,
        Option(
            "Model",
            "A GGUF file, a Hugging Face directory, 'demo' for SmolLM2-135M, or 'tiny-glm5', which"
            " is shipped; with --engine tilert glm5 or dsv32.",
            default="demo; of the server without a role, tiny-glm5 where that is not in the cache",
        ),
    ] = "auto"
