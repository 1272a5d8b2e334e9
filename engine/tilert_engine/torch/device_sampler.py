"""Drawing inside a chain: logits and the tokens' numbers in, ids out, all of it on the device.

What is drawn is what ``Sampler`` draws, from the same numbers. Its parameters are tensors, so that
a recorded step serves every request: what a request asks for decides only which recording is taken
(``Way``), because sorting a vocabulary for a greedy request would be a waste.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

import torch

from .adjustments import Adjustments, nearest
from .sampler import is_greedy

if TYPE_CHECKING:
    from tilert_stream.events import Limits, Sampling

    from .sampler import Sampler

__all__ = ("PLAIN_WAYS", "DeviceSampler", "Pick", "Way")


class Pick(Enum):
    """What a draw has to compute of the logits."""

    GREEDY = "greedy"
    PLAIN = "plain"
    """Of all tokens, or of those that ``min_p`` leaves."""
    RANKED = "ranked"
    """``top_k`` or ``top_p``: the vocabulary is sorted."""


class Way(NamedTuple):
    """What a step has to compute beside the model: each way has recordings of its own."""

    pick: Pick
    adjusts: bool = False
    """Penalties or a bias come first, and what is drawn is counted."""
    scores: bool = False
    """Log-probabilities are kept."""


PLAIN_WAYS: Final = tuple(map(Way, Pick))
"""Those of most requests."""


class DeviceSampler:
    """One slot's way of drawing.

    :param numbers: tokens that an answer has at most, and those drafted beyond it.
    """

    def __init__(self, vocab: int, numbers: int, device: torch.device) -> None:
        self._vocab = vocab
        self._ranks = torch.arange(vocab, device=device)
        self._temperature = torch.ones((), dtype=torch.float32, device=device)
        self._min_p = torch.zeros((), dtype=torch.float32, device=device)
        self._top_k = torch.zeros((), dtype=torch.int64, device=device)
        self._top_p = torch.zeros((), dtype=torch.float64, device=device)
        self._points = torch.zeros(numbers, dtype=torch.float64, device=device)
        self.min_tokens = torch.zeros((), dtype=torch.int64, device=device)
        self.ends = torch.zeros(vocab, dtype=torch.bool, device=device)
        """Which tokens end the answer."""
        self.adjustments = Adjustments(vocab, device)
        # Copies from pinned memory are enqueued like everything else; any other would wait for the
        # chain that runs. What is written there again before a copy was made belongs to a later
        # request than the copy, and to its own copy as well.
        pinned = device.type == "cuda"
        self._host_points = torch.zeros(numbers, dtype=torch.float64, pin_memory=pinned)
        self._host_ends = torch.zeros(vocab, dtype=torch.bool, pin_memory=pinned)

    @property
    def size(self) -> int:
        """Tokens of an answer that there is room for."""
        return self._points.shape[0]

    def way(self, sampling: Sampling) -> Way:
        """The least that ``sampling`` needs."""
        pick = Pick.PLAIN
        if is_greedy(sampling):
            pick = Pick.GREEDY
        elif sampling.top_p < 1 or 0 < sampling.top_k < self._vocab:
            pick = Pick.RANKED
        return Way(pick, sampling.adjusts, sampling.logprobs is not None)

    def take(self, sampling: Sampling, limits: Limits, first_token: int) -> None:
        """Draw for another request from now on, whose answer begins with ``first_token``."""
        if sampling.adjusts:
            self.adjustments.begin(sampling, first_token)
        vocab = self._vocab
        temperature = 1.0 if is_greedy(sampling) else sampling.temperature
        self._temperature.fill_(nearest(temperature))
        self._min_p.fill_(sampling.min_p)
        self._top_k.fill_(sampling.top_k if 0 < sampling.top_k < vocab else vocab)
        # Below 1 it cuts; at 1 nothing may be cut, not even by a rounded sum.
        self._top_p.fill_(sampling.top_p if sampling.top_p < 1 else math.inf)
        self.min_tokens.fill_(limits.min_tokens)
        self._host_ends.zero_()
        known = [token for token in limits.eos_ids | limits.stop_ids if 0 <= token < vocab]
        self._host_ends[known] = True
        self.ends.copy_(self._host_ends, non_blocking=True)

    def number(self, sampler: Sampler, start: int, stop: int) -> None:
        """Bring the numbers of tokens ``start`` … ``stop`` - 1 of the answer to the device."""
        points = [sampler.point(index) for index in range(start, stop)]
        self._host_points[start:stop] = torch.tensor(points, dtype=torch.float64)
        self._points[start:stop].copy_(self._host_points[start:stop], non_blocking=True)

    def draw(
        self,
        way: Way,
        logits: torch.Tensor,
        index: torch.Tensor,
        *,
        drafts: torch.Tensor | None = None,
        guess: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw tokens; nothing is read back.

        :param logits: float32 ``[n, vocab]``.
        :param index: which tokens of the answer they are, int64 ``[n]``.
        :param drafts: the answer's tokens between the places, if they are right: int64 ``[n - 1]``.
        :param guess: nothing is masked or adjusted: a draft, which is verified anyway.
        :returns: ids int64 ``[n]`` and highest logits ``[n]``, with ``Sampler.draw``'s meaning.
        """
        if not guess:
            early = (index < self.min_tokens).unsqueeze(1)
            logits = logits.masked_fill(early & self.ends, -torch.inf)
            if way.adjusts:
                logits = self.adjustments.apply(logits, drafts)
        peaks, best = logits.max(-1)
        if way.pick is Pick.GREEDY:
            return best, peaks
        scaled = (logits - peaks.unsqueeze(1)) / self._temperature
        scaled = scaled.masked_fill(scaled.exp() < self._min_p, -torch.inf)
        points = self._points.index_select(0, index.clamp(max=self.size - 1))
        if way.pick is Pick.PLAIN:
            return _placed(scaled.double().exp(), points).squeeze(1), peaks
        scaled, order = scaled.sort(dim=-1, descending=True, stable=True)
        scaled = scaled.masked_fill(self._ranks >= self._top_k, -torch.inf)
        weights = scaled.double().exp()
        enough = weights.sum(-1, keepdim=True) * self._top_p
        outside = (weights.cumsum(-1) - weights >= enough) & (self._ranks > 0)
        place = _placed(weights.masked_fill(outside, 0), points)
        return order.gather(1, place).squeeze(1), peaks


def _placed(weights: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
    """Invert each row's distribution at its point; places ``[n, 1]``. As in ``Sampler``."""
    gathered = weights.cumsum(-1)
    total = gathered[:, -1:].contiguous()
    place = torch.searchsorted(gathered, total * points.unsqueeze(1), right=True)
    last = torch.searchsorted(gathered, total)
    return torch.minimum(place, last).clamp(max=gathered.shape[1] - 1)
