"""The fields that chat and text completions share, as pydantic types.

None means absent, everywhere: ``null`` and a missing key are the same request.
"""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Discriminator, Field, Tag

from .validation import WireModel

__all__ = (
    "CHOICES_MAX",
    "LOGPROBS_MAX",
    "STOP_MAX",
    "STOP_STRING_MAX",
    "CommonRequest",
    "StreamOptions",
)

STOP_MAX: Final = 16
"""Stop strings a request may give. OpenAI and vLLM stop at 4; each costs a scan of every delta."""
STOP_STRING_MAX: Final = 1024
"""Characters of one stop string: so much text may be held back while it might still match."""

CHOICES_MAX: Final = 128
"""Answers to one request. OpenAI's limit."""
LOGPROBS_MAX: Final = 20
"""Most likely tokens beside each drawn one. OpenAI's limit, and vLLM's default."""

REPETITION_MIN: Final = 0.001
REPETITION_MAX: Final = 1000
"""Logits, which it multiplies and divides, stay finite. vLLM takes anything above 0."""

INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1


def _stop_shape(value: object) -> str | None:
    if isinstance(value, str):
        return "<string>"
    return "<strings>" if isinstance(value, list) else None


StopString = Annotated[str, Field(min_length=1, max_length=STOP_STRING_MAX)]
Stop = Annotated[
    Annotated[StopString, Tag("<string>")]
    | Annotated[list[StopString], Field(max_length=STOP_MAX, fail_fast=True), Tag("<strings>")],
    Discriminator(
        _stop_shape,
        custom_error_type="stop_shape",
        custom_error_message="a string or a list of strings",
    ),
]


class StreamOptions(WireModel):
    """``stream_options``."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class CommonRequest(WireModel):
    """Ranges are vLLM's (``SamplingParams``)."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    min_tokens: int | None = Field(default=None, ge=0)
    stop: Stop | None = None
    stop_token_ids: list[int] | None = Field(default=None, fail_fast=True)
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    add_special_tokens: bool | None = None
    temperature: float | None = Field(default=None, ge=0)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1)
    min_p: float | None = Field(default=None, ge=0, le=1)
    seed: int | None = Field(default=None, ge=INT64_MIN, le=INT64_MAX)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    repetition_penalty: float | None = Field(default=None, ge=REPETITION_MIN, le=REPETITION_MAX)
    logit_bias: dict[str, float] | None = None
    n: int | None = Field(default=None, ge=1, le=CHOICES_MAX)
    echo: bool | None = None
    prompt_logprobs: int | None = Field(default=None, ge=0, le=LOGPROBS_MAX)
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    response_format: dict[str, object] | None = None
    structured_outputs: dict[str, object] | None = None
