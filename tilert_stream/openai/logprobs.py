"""Log-probabilities in, OpenAI's two shapes of them out.

A chat has ``{"content": [{token, logprob, bytes, top_logprobs}]}``, a completion four lists:
``tokens``, ``token_logprobs``, ``top_logprobs`` and ``text_offset``. There is one entry a token of
the answer, the one that ended it included: as many as ``completion_tokens`` counts.
"""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..events import TokenLogprob
    from .token_names import TokenNames

__all__ = ("chat_logprobs", "completion_logprobs", "prompt_logprobs", "text_offsets")

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
    first: int | None = None,
) -> dict[str, object]:
    """``logprobs`` of a text completion's choice.

    :param as_ids: tokens are written ``token_id:N``.
    :param offsets: where each token's text begins in the answer, in characters.
    :param first: a prompt's first token, which stands before all others: nothing is told of it.
    """
    untold = [] if first is None else [None]
    named = [] if first is None else [_name(first, names, as_ids=as_ids)]
    top: list[dict[str, float] | None] = [*untold]
    for each in told:
        # Of two that are spelled alike the likelier stays: an object has each name once.
        likely: dict[str, float] = {}
        for other, logprob in (*each.top, (each.token_id, each.logprob)):
            likely.setdefault(_name(other, names, as_ids=as_ids), max(logprob, LEAST))
        top.append(likely)
    return {
        "tokens": [*named, *(_name(each.token_id, names, as_ids=as_ids) for each in told)],
        "token_logprobs": [*untold, *(max(each.logprob, LEAST) for each in told)],
        "top_logprobs": top,
        "text_offset": list(offsets),
    }


def prompt_logprobs(
    told: Sequence[TokenLogprob], names: TokenNames | None = None, count: int | None = None
) -> list[dict[str, dict[str, object]] | None]:
    """``prompt_logprobs`` as vLLM has them: an object a token, by token ids; null for the first.

    ``rank`` is null for a token of the prompt that is not among the most likely ones.

    :param told: of each token but the first.
    :param names: spells ``decoded_token``; None leaves it out.
    :param count: how many of the most likely tokens to tell; None: all.
    """
    entries: list[dict[str, dict[str, object]] | None] = [None]
    spelled: dict[int, str] = {}
    for each in told:
        top = each.top if count is None else each.top[:count]
        ranks = {token: place for place, (token, _) in enumerate(each.top, 1)}
        entry: dict[str, dict[str, object]] = {}
        for token, logprob in ((each.token_id, each.logprob), *top):
            one: dict[str, object] = {"logprob": max(logprob, LEAST), "rank": ranks.get(token)}
            if names is not None:
                if token not in spelled:
                    spelled[token] = _name(token, names, as_ids=False)
                one["decoded_token"] = spelled[token]
            entry[str(token)] = one
        entries.append(entry)
    return entries


def text_offsets(ids: Sequence[int], text: str, names: TokenNames) -> list[int]:
    """Where the text of each of ``ids`` begins in ``text``, which they spell.

    A token that has none there (a special one that the tokenizer has added) begins where the next
    one does.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    offsets: list[int] = []
    at = 0
    for token in ids:
        offsets.append(at)
        piece = decoder.decode(names.spelled(token))
        if not at and not text.startswith(piece):
            # SentencePiece spells a text's first word with a space before it.
            piece = piece.removeprefix(" ")
        if text.startswith(piece, at):
            at += len(piece)
    return offsets


def _entry(token: int, logprob: float, names: TokenNames, *, as_ids: bool) -> dict[str, object]:
    return {
        "token": _name(token, names, as_ids=as_ids),
        "logprob": max(logprob, LEAST),
        "bytes": list(names.spelled(token)),
    }


def _name(token: int, names: TokenNames, *, as_ids: bool) -> str:
    return f"token_id:{token}" if as_ids else names.spelled(token).decode(errors="replace")
