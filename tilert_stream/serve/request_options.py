"""What the options of whole requests come to: time limits, and the operator's own stages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tilert_stream.link import make_link
from tilert_stream.time_limits import TimeLimits

if TYPE_CHECKING:
    from tilert_stream.config.request import LimitOptions, PipelineOptions
    from tilert_stream.service import Service

__all__ = ("check_stages", "place_stages", "time_limits")


def check_stages(config: PipelineOptions) -> None:
    """Load the operator's stages: a wrong name is told before a model is loaded.

    :raises ~tilert_stream.errors.PipelineError: one is not found, or is no stage.
    """
    for stage in config.stages:
        make_link(stage.use)


def place_stages(service: Service[Any], config: PipelineOptions) -> None:
    """Put the operator's stages where they go.

    :raises ~tilert_stream.errors.PipelineError: one cannot stand there.
    """
    for stage in config.stages:
        service.pipeline = service.pipeline.insert(
            stage.use, where=stage.where, anchor=stage.anchor
        )


def time_limits(config: LimitOptions) -> TimeLimits:
    """The limits of a request's parts."""
    return TimeLimits(
        prefill=config.prefill_timeout,
        kv=config.kv_timeout,
        first_token=config.first_token_timeout,
        inter_token=config.inter_token_timeout,
        total=config.total_timeout,
    )
