"""The log-probabilities of a prompt: a completion's choice in, as vLLM and we write it.

One entry a token; of the first there are none. A number is a token id::

    {"prompt_logprobs": [null, {"5": {"logprob": -0.1}, "9": {"logprob": -2.5}}]}
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..events import TokenLogprob
from .first_logprob import finite_number
from .json_fields import as_list, as_object, token_id

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ("read_prompt_logprobs",)

NAME = "choices[0].prompt_logprobs"


def read_prompt_logprobs(
    choice: Mapping[str, object], prompt_ids: Sequence[int], count: int
) -> tuple[TokenLogprob, ...]:
    """Of each of ``prompt_ids`` but the first, and the ``count`` most likely tokens beside it.

    :raises ValueError: ``choice`` does not say them.
    """
    given = as_list(choice.get("prompt_logprobs"), NAME)
    if len(given) != len(prompt_ids):
        raise ValueError(f"{NAME} has {len(given)} entries; the prompt has {len(prompt_ids)}")
    return tuple(
        _entry(as_object(entry, f"{NAME}[{place}]"), token, count)
        for place, (entry, token) in enumerate(zip(given, prompt_ids, strict=True))
        if place
    )


def _entry(given: Mapping[str, object], own: int, count: int) -> TokenLogprob:
    told: dict[int, float] = {}
    for name, value in given.items():
        token = token_id(int(name) if name.isdecimal() else name, NAME)
        told[token] = finite_number(as_object(value, NAME).get("logprob"), NAME)
    if own not in told:
        raise ValueError(f"{NAME} has no entry for the prompt's token {own}")
    top = sorted(told.items(), key=lambda each: -each[1])
    return TokenLogprob(own, told[own], tuple(top[:count]))
