"""Penalties and bias: logits in, logits out, and a count of the tokens that the answer has.

As vLLM has them: first the bias is added; then ``repetition_penalty`` divides the positive and
multiplies the negative logits of what the prompt or the answer has; then ``frequency_penalty``
times its count, and ``presence_penalty``, are taken off what the answer has.

The parameters are tensors, so that a recorded step serves every request. Nothing is read back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

if TYPE_CHECKING:
    from tilert_stream.events import Sampling

__all__ = ("Adjustments", "nearest")

_LARGEST: Final = torch.finfo(torch.float32).max


def nearest(value: float) -> float:
    """``value``, or what of float32 comes nearest to it: a tensor takes nothing beyond that."""
    return min(max(value, -_LARGEST), _LARGEST)


class Adjustments:
    """Those of one answer; ``begin`` starts the next one's.

    :param vocab: length of the logits.
    """

    def __init__(self, vocab: int, device: torch.device) -> None:
        def numbers(*shape: int) -> torch.Tensor:
            return torch.zeros(shape, dtype=torch.float32, device=device)

        self._counts = numbers(vocab)
        self._in_prompt = torch.zeros(vocab, dtype=torch.bool, device=device)
        self._bias = numbers(vocab)
        self._presence, self._frequency, self._repetition = numbers(), numbers(), numbers()

    def begin(self, sampling: Sampling, first_token: int | None = None) -> None:
        """Adjust another answer's logits from now on.

        Ids outside the vocabulary are left out.

        :param first_token: what the answer begins with; None: nothing yet.
        """
        vocab = self._counts.shape[0]
        self._presence.fill_(nearest(sampling.presence_penalty))
        self._frequency.fill_(nearest(sampling.frequency_penalty))
        self._repetition.fill_(nearest(sampling.repetition_penalty))
        counts = torch.zeros(vocab)
        if first_token is not None:
            counts[first_token] = 1
        in_prompt = torch.zeros(vocab, dtype=torch.bool)
        in_prompt[[token for token in sampling.prompt_tokens if 0 <= token < vocab]] = True
        bias = torch.zeros(vocab)
        for token, value in sampling.logit_bias:
            if 0 <= token < vocab:
                bias[token] = nearest(value)
        for target, source in (
            (self._counts, counts),
            (self._in_prompt, in_prompt),
            (self._bias, bias),
        ):
            target.copy_(source)

    def apply(self, logits: torch.Tensor, drafts: torch.Tensor | None = None) -> torch.Tensor:
        """The adjusted logits.

        :param logits: float32 ``[vocab]``, or ``[n, vocab]`` of places one behind the other.
        :param drafts: int64 ``[n - 1]``: what would be the answer's tokens up to each place but
            the first; None: they are all the same place.
        """
        counts = self._counts
        if drafts is not None and drafts.shape[0]:
            places = torch.arange(logits.shape[0], device=logits.device)
            before = (places.unsqueeze(1) > places[:-1]).float()
            drafted = torch.zeros_like(logits[1:]).scatter_(1, drafts.unsqueeze(1), 1.0)
            counts = counts + before @ drafted
        logits = logits + self._bias
        has = counts > 0
        # In two halves, one of which is 0: choosing by sign costs ten times as much on a CPU.
        repeated = logits.clamp(min=0) / self._repetition + logits.clamp(max=0) * self._repetition
        logits = torch.where(has | self._in_prompt, repeated, logits)
        return logits - self._frequency * counts - self._presence * has.float()

    def count(self, tokens: torch.Tensor, kept: torch.Tensor | None = None) -> None:
        """Add ``tokens``, int64 ``[n]``, to the answer.

        :param kept: which of them, bool ``[n]``; None: all.
        """
        ones = torch.ones_like(tokens, dtype=torch.float32) if kept is None else kept.float()
        self._counts.index_add_(0, tokens, ones)
