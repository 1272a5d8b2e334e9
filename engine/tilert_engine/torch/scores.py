"""Log-probabilities: logits in; the drawn tokens', and those of the most likely ones, out.

Of the model's own distribution, before penalties, temperature or anything that is masked, which is
vLLM's default (``raw_logprobs``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

import torch

from tilert_stream.events import TokenLogprob

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ("MOST", "read_scores", "row_width", "score")

MOST: Final = 20
"""Tokens beside the drawn one; no request may ask for more."""


def row_width(vocab: int) -> int:
    """Numbers in a row of ``score``."""
    return 1 + 2 * min(MOST, vocab)


def score(logits: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
    """A row for each place: the drawn token's log-probability, the top ids, theirs.

    :param logits: float32 ``[n, vocab]``.
    :param drawn: int64 ``[n]``.
    :returns: float64 ``[n, row_width]``; ids are exact. Nothing is read back.
    """
    logprobs = logits.log_softmax(-1)
    values, ids = logprobs.topk(min(MOST, logits.shape[-1]), dim=-1)
    own = logprobs.gather(-1, drawn.unsqueeze(-1))
    return torch.cat((own.double(), ids.double(), values.double()), -1)


def read_scores(rows: torch.Tensor, tokens: Sequence[int], count: int) -> tuple[TokenLogprob, ...]:
    """What ``score`` has written, on the host.

    :param rows: on the CPU, one for each of ``tokens``.
    :param count: how many of the top ones were asked for.
    """
    top = (rows.shape[-1] - 1) // 2
    count = min(count, top)
    read = cast("list[list[float]]", rows.tolist())  # pyright: ignore[reportUnknownMemberType] -- untyped in torch
    return tuple(
        TokenLogprob(
            token,
            row[0],
            tuple(
                (int(other), value)
                for other, value in zip(row[1 : 1 + count], row[1 + top :], strict=False)
            ),
        )
        for token, row in zip(tokens, read, strict=True)
    )
