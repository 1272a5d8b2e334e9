"""Log-probabilities of a prompt: hidden states in, those of each token that follows one out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from .scores import read_scores, score

if TYPE_CHECKING:
    from collections.abc import Callable

    from tilert_stream.events import TokenLogprob

__all__ = ("PromptScores",)

PLACES: Final = 64
"""Scored at a time: each takes the memory of a whole vocabulary."""


class PromptScores:
    """One prompt's.

    :param count: how many of the most likely tokens are told beside each of its own; None: nothing
        is told.
    """

    def __init__(self, prompt_ids: tuple[int, ...], count: int | None) -> None:
        self._ids = prompt_ids
        self._count = count
        self._told: list[TokenLogprob] = []

    @property
    def told(self) -> tuple[TokenLogprob, ...] | None:
        """One for each token but the first, once all have been taken; None: nothing is told."""
        return None if self._count is None else tuple(self._told)

    def take(
        self,
        logits: Callable[[torch.Tensor], torch.Tensor],
        hidden: torch.Tensor,
        start: int,
    ) -> None:
        """Read what a chunk says of the tokens that follow its own.

        :param logits: float32 ``[n, vocab]`` of ``[n, hidden]``.
        :param hidden: of the prompt's tokens from ``start`` on.
        """
        if self._count is None:
            return
        following = self._ids[start + 1 : start + 1 + hidden.shape[0]]
        for begin in range(0, len(following), PLACES):
            ids = following[begin : begin + PLACES]
            own = torch.tensor(ids, device=hidden.device)
            rows = score(logits(hidden[begin : begin + len(ids)]), own)
            self._told += read_scores(rows.cpu(), ids, self._count)
