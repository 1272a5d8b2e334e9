"""How far a slot's sequence is, as numbers on the device: what a step drew in, the next step out.

Nothing of it is read back. The host learns of a step from the row that it leaves in ``record``:
the ids that were drawn, their highest logits, how many of them count, and whether the answer is
over. Once it is, further steps change nothing and count nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from .device_queue import WARMING
from .device_sampler import DeviceSampler
from .scores import row_width, score

if TYPE_CHECKING:
    from tilert_stream.events import Limits, Sampling

    from .device_sampler import Way

__all__ = ("SlotState", "Step")

_COUNT: Final = -2
_OVER: Final = -1


class Step:
    """A row of a record, read on the host."""

    __slots__ = ("ids", "over", "peaks")

    def __init__(self, row: list[float]) -> None:
        width, count = len(row) // 2 - 1, int(row[_COUNT])
        self.ids = [int(token) for token in row[:count]]
        """Those that count; none where the answer was over before."""
        self.peaks = row[width : width + count]
        """The highest logit of each."""
        self.over = bool(row[_OVER])


class SlotState:
    """One slot's.

    :param step_tokens: the most tokens that a step yields.
    :param max_seq_len: tokens of prompt and answer together.
    :param ar_steps: the longest chain.
    """

    def __init__(
        self,
        vocab: int,
        *,
        step_tokens: int,
        max_seq_len: int,
        ar_steps: int,
        device: torch.device,
    ) -> None:
        def numbers(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.step_tokens = step_tokens
        self.sampler = DeviceSampler(vocab, max_seq_len + 2 * step_tokens, device)
        self.tokens = numbers(step_tokens)
        """The newest token, not yet in the cache, and the drafts after it."""
        rows = max(ar_steps, WARMING)
        self.record = numbers(rows, 2 * step_tokens + 2, dtype=torch.float64)
        """A row a step of a chain; float64 holds ids and logits exactly: one copy reads all."""
        self.scores = numbers(rows, step_tokens, row_width(vocab), dtype=torch.float64)
        """Beside it, ``score`` of the drawn tokens, where that is asked for."""
        self.places = numbers(step_tokens)
        """Positions of ``tokens``."""
        self.numbers = numbers(step_tokens)
        """Which tokens of the answer are drawn after them."""
        self._offsets = torch.arange(step_tokens, device=device)
        self._row = numbers(1)
        self._over = numbers(1, dtype=torch.bool)
        self._max_tokens = numbers(1)

    def reset(self) -> None:
        """Be at the beginning of a cache that nobody needs."""
        self._move(0, 0)
        self.begin_chain()

    def begin(self, length: int, first_token: int, limits: Limits, sampling: Sampling) -> None:
        """Be at the end of a prompt of ``length`` tokens that ``first_token`` follows."""
        self._move(length, first_token)
        self._max_tokens.fill_(limits.max_tokens)
        self.sampler.take(sampling, limits, first_token)

    def _move(self, length: int, token: int) -> None:
        # Whatever the drafts are, they are verified: the newest token again is as good a guess as
        # any, before there is a better one.
        self.tokens.fill_(token)
        torch.add(self._offsets, length, out=self.places)
        torch.add(self._offsets, 1, out=self.numbers)
        self._over.zero_()

    def begin_chain(self) -> None:
        """Let the next step write the record's first row."""
        self._row.zero_()

    def advance(
        self,
        way: Way,
        logits: torch.Tensor,
        drawn: torch.Tensor,
        peaks: torch.Tensor,
        kept: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Book a step.

        :param logits: the model's, float32 ``[step_tokens, vocab]``.
        :param drawn: what was drawn after each of ``tokens``, int64 ``[step_tokens]``.
        :param peaks: the highest logit of each.
        :param kept: how many of them count, int64 ``[1]``; None: all.
        :returns: how far the sequence has moved, int64 ``[1]``: ``kept``, or 0 where it was over.
        """
        moved = torch.full_like(self._row, self.step_tokens) if kept is None else kept
        moved = moved.masked_fill(self._over, 0)
        taken = self._offsets < moved
        late = self.numbers + 1 >= self.sampler.min_tokens
        stopped = (self.sampler.ends.index_select(0, drawn) & taken & late).any()
        self.places += moved
        self.numbers += moved
        self._over |= stopped | (self.numbers[:1] >= self._max_tokens)
        row = torch.cat((drawn, moved, self._over)).double()
        row = torch.cat((row[:_COUNT], peaks.double(), row[_COUNT:]))
        self.record.index_copy_(0, self._row, row.unsqueeze(0))
        if way.scores:
            self.scores.index_copy_(0, self._row, score(logits, drawn).unsqueeze(0))
        if way.adjusts:
            self.sampler.adjustments.count(drawn, taken)
        self._row += 1
        newest = drawn.index_select(0, (moved - 1).clamp(min=0))
        self.tokens[:1] = torch.where(moved > 0, newest, self.tokens[:1])
        return moved
