"""Sampling that few requests ask for, as the fields of a node's JSON: only what is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..events import Sampling

__all__ = ("further_sampling", "logit_fields")


def logit_fields(sampling: Sampling) -> dict[str, object]:
    """Penalties and bias, by the names that they have in OpenAI's and vLLM's requests."""
    fields: dict[str, object] = {}
    if sampling.presence_penalty:
        fields["presence_penalty"] = sampling.presence_penalty
    if sampling.frequency_penalty:
        fields["frequency_penalty"] = sampling.frequency_penalty
    if sampling.repetition_penalty != 1:
        fields["repetition_penalty"] = sampling.repetition_penalty
    if sampling.logit_bias:
        fields["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias}
    return fields


def further_sampling(sampling: Sampling) -> dict[str, object]:
    """What a decode node is told: it has no prompt, and knows no ``response_format``."""
    fields = logit_fields(sampling)
    if sampling.prompt_tokens:
        fields["prompt_tokens"] = sorted(sampling.prompt_tokens)
    if sampling.logprobs is not None:
        fields["logprobs"] = sampling.logprobs
    if sampling.grammar is not None:
        fields["grammar"] = sampling.grammar
    return fields
