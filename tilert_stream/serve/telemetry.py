"""What a server is to tell of its requests: options in, telemetry out."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tilert_stream.telemetry.request_log import open_request_log
from tilert_stream.telemetry.telemetry import Telemetry

if TYPE_CHECKING:
    from tilert_stream.config.server import LogOptions
    from tilert_stream.model.card import ModelCard

__all__ = ("make_telemetry",)


def make_telemetry(config: LogOptions, card: ModelCard, *, shared_port: bool = False) -> Telemetry:
    """Metrics, and the request log where one is asked for.

    :param shared_port: several processes answer on it: each says which one it is.
    :raises ~tilert_stream.errors.ConfigError: the log cannot be written.
    """
    return Telemetry(
        card.names[0],
        log=None if config.request_log is None else open_request_log(config.request_log),
        vllm=config.metrics_aliases == "vllm",
        worker=str(os.getpid()) if shared_port else None,
    )
