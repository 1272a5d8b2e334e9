"""Log-probabilities in, OpenAI's two shapes of them out.

A chat has ``{"content": [{token, logprob, bytes, top_logprobs}]}``, a completion four lists:
``tokens``, ``token_logprobs``, ``top_logprobs`` and ``text_offset``. There is one entry a token of
the answer, the one that ended it included: as many as ``completion_tokens`` counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..events import TokenLogprob
    from .token_names import TokenNames

__all__ = ("chat_logprobs", "completion_logprobs")

LEAST: Final = -9999.0
"""As vLLM: JSON has no infinity."""


def chat_logprobs(
    told: Sequence[TokenLogprob], names: TokenNames, *, as_ids: bool = False
) -> dict[str, object]:
    """``logprobs`` of a chat's choice.

    :param as_ids: tokens are written ``token_id:N``.
    """
    content = [
        _entry(each.token_id, each.logprob, names, as_ids=as_ids)
        | {"top_logprobs": [_entry(*other, names, as_ids=as_ids) for other in each.top]}
        for each in told
    ]
    return {"content": content}


def completion_logprobs(
    told: Sequence[TokenLogprob],
    names: TokenNames,
    *,
    as_ids: bool = False,
    offsets: Sequence[int] = (),
) -> dict[str, object]:
    """``logprobs`` of a text completion's choice.

    :param as_ids: tokens are written ``token_id:N``.
    :param offsets: where each token's text begins in the answer, in characters.
    """
    top: list[dict[str, float]] = []
    for each in told:
        # Of two that are spelled alike the likelier stays: an object has each name once.
        likely: dict[str, float] = {}
        for other, logprob in (*each.top, (each.token_id, each.logprob)):
            likely.setdefault(_name(other, names, as_ids=as_ids), max(logprob, LEAST))
        top.append(likely)
    return {
        "tokens": [_name(each.token_id, names, as_ids=as_ids) for each in told],
        "token_logprobs": [max(each.logprob, LEAST) for each in told],
        "top_logprobs": top,
        "text_offset": list(offsets),
    }


def _entry(token: int, logprob: float, names: TokenNames, *, as_ids: bool) -> dict[str, object]:
    return {
        "token": _name(token, names, as_ids=as_ids),
        "logprob": max(logprob, LEAST),
        "bytes": list(names.spelled(token)),
    }


def _name(token: int, names: TokenNames, *, as_ids: bool) -> str:
    return f"token_id:{token}" if as_ids else names.spelled(token).decode(errors="replace")
