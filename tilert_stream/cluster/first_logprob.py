"""The log-probability of the first token: a completion's choice in, as vLLM and we write it.

Tokens are ``token_id:N`` there (``return_tokens_as_token_ids``)::

    {"logprobs": {"tokens": ["token_id:5"], "token_logprobs": [-0.1],
                  "top_logprobs": [{"token_id:5": -0.1, "token_id:9": -2.5}]}}
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Final

from ..events import TokenLogprob
from .json_fields import as_list, as_object, token_id

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ("finite_number", "read_first_logprob")

_TOKEN: Final = re.compile(r"token_id:([0-9]{1,10})")


def read_first_logprob(
    choice: Mapping[str, object], first: int, count: int
) -> tuple[TokenLogprob, ...]:
    """Of ``first``, and the ``count`` most likely tokens.

    :raises ValueError: ``choice`` does not say it.
    """
    given = as_object(choice.get("logprobs"), "choices[0].logprobs")
    own = as_list(given.get("token_logprobs"), "choices[0].logprobs.token_logprobs", least=1)[0]
    top = as_list(given.get("top_logprobs"), "choices[0].logprobs.top_logprobs", least=1)[0]
    others = [
        (_token(name), finite_number(value, "choices[0].logprobs"))
        for name, value in as_object(top, "choices[0].logprobs.top_logprobs[0]").items()
    ]
    others.sort(key=lambda each: -each[1])
    return (TokenLogprob(first, finite_number(own, "choices[0].logprobs"), tuple(others[:count])),)


def _token(name: str) -> int:
    match = _TOKEN.fullmatch(name)
    if match is None:
        raise ValueError(f"choices[0].logprobs has the token {name!r:.40}; it must be token_id:N")
    return token_id(int(match[1]), "choices[0].logprobs")


def finite_number(value: object, field: str) -> float:
    """``value``, a log-probability.

    :raises ValueError: it is none.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{field} has a log-probability that is no number")
    return float(value)
