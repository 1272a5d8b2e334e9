"""Drawing a token: logits in, an id out.

Order and definitions are vLLM's: mask, bias, penalties, temperature, min_p, top_k, top_p. A draw is
a pure function of the logits, the seed, the token's index in the answer and, where penalties or a
grammar ask for them, the tokens before it, so that it is the same in any slot, in any batch, and on
either side of the hand-over.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import TYPE_CHECKING, Final

import torch

from tilert_stream.errors import EngineFault
from tilert_stream.events import PLAIN_CAPABILITIES, Capability

from .adjustments import Adjustments
from .scores import read_scores, score

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tilert_stream.events import Sampling, TokenLogprob

    from .grammar import GrammarMatcher, Grammars

__all__ = ("Sampler", "is_greedy", "make_sampler", "sampler_capabilities", "uniform")

_GREEDY_BELOW: Final = 1e-5
_FEW: Final = 512
_CAPABILITIES: Final = PLAIN_CAPABILITIES | frozenset[Capability](
    {
        "frequency_penalty",
        "logit_bias",
        "logprobs",
        "presence_penalty",
        "prompt_logprobs",
        "repetition_penalty",
    }
)
_GRAMMAR: Final = frozenset[Capability]({"grammar"})


def uniform(seed: int, index: int) -> float:
    """Number ``index`` of the stream ``seed``, in [0, 1): a counter-based generator."""
    digest = hashlib.blake2b(f"{seed}:{index}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest) >> 11) * 2.0**-53


def is_greedy(sampling: Sampling) -> bool:
    """Whether ``sampling`` takes the likeliest token."""
    return sampling.temperature < _GREEDY_BELOW


class Sampler:
    """One request's way of drawing.

    No draw changes it; ``note`` does, where anything depends on what was drawn before.

    :param matcher: the answer's grammar; None: it may be anything.
    """

    def __init__(self, sampling: Sampling, matcher: GrammarMatcher | None = None) -> None:
        self._sampling = sampling
        self._seed = secrets.randbits(64) if sampling.seed is None else sampling.seed
        self._matcher = matcher
        self._adjustments: Adjustments | None = None
        self._begun_with: int | None = None
        self.remembers = sampling.adjusts or matcher is not None
        """Whether a draw depends on the tokens before it: each must be noted."""
        self.logprobs = sampling.logprobs
        """How many tokens are to be told beside each drawn one; None: no log-probabilities."""

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken, and no number is needed."""
        return is_greedy(self._sampling)

    def point(self, index: int) -> float:
        """The number in [0, 1) at which token number ``index`` of the answer is drawn."""
        return uniform(self._seed, index)

    def draw(
        self, logits: torch.Tensor, index: int, *, masked: Iterable[int] = ()
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw token number ``index`` of the answer. Nothing is read back from the device.

        :param logits: float32 ``[vocab]``; overwritten at ``masked``.
        :param masked: ids that must not be drawn; those outside the vocabulary are ignored.
        :returns: the id and the highest logit, each of one element. A highest logit that is not
            finite means that the id is worthless: NaN in the logits, or every id masked.
        """
        mask = [token for token in masked if 0 <= token < logits.shape[0]]
        if mask:
            logits[mask] = -torch.inf
        if self.remembers:
            logits = self._allowed(logits)
        return self.guess(logits, index)

    def guess(self, logits: torch.Tensor, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw as ``draw`` does, whatever came before: a draft, which is verified anyway."""
        # max() propagates NaN, so its value tells of one anywhere in the logits.
        peak, best = logits.max(-1)
        if self.greedy:
            return best, peak
        scaled = (logits - peak) / self._sampling.temperature
        return self._drawn(scaled, self.point(index)), peak

    def begin(self, first_token: int) -> None:
        """The answer begins with ``first_token``, which another sampler has drawn."""
        if self._matcher is not None:
            self._matcher.consume(first_token)
        self._begun_with = first_token

    def note(self, drawn: torch.Tensor) -> None:
        """A drawn token, of one element, is the answer's next."""
        if self._adjustments is not None:
            self._adjustments.count(drawn.view(1))
        if self._matcher is not None:
            self._matcher.consume(int(drawn))

    def score(self, logits: torch.Tensor, drawn: torch.Tensor) -> tuple[TokenLogprob]:
        """The log-probability of a drawn token, and of as many others as are asked for.

        :param logits: as the model has them: before ``draw`` has masked any.
        """
        rows = score(logits.unsqueeze(0), drawn.view(1))
        (told,) = read_scores(rows.cpu(), (int(drawn),), self.logprobs or 0)
        return (told,)

    def _allowed(self, logits: torch.Tensor) -> torch.Tensor:
        if self._sampling.adjusts:
            if self._adjustments is None:
                self._adjustments = Adjustments(logits.shape[0], logits.device)
                self._adjustments.begin(self._sampling, self._begun_with)
            logits = self._adjustments.apply(logits)
        if self._matcher is not None:
            logits = logits.masked_fill(self._matcher.forbidden(logits), -torch.inf)
        return logits

    def _drawn(self, scaled: torch.Tensor, point: float) -> torch.Tensor:
        """Draw by inverting the distribution at ``point``; ``scaled`` has its maximum at 0."""
        sampling, vocab = self._sampling, scaled.shape[0]
        candidates: torch.Tensor | None = None
        if sampling.min_p > 0:
            # p >= min_p * p_max, and p / p_max = exp(scaled)
            scaled = scaled.masked_fill(scaled.exp() < sampling.min_p, -torch.inf)
        if 0 < sampling.top_k < vocab:
            scaled, candidates = scaled.topk(sampling.top_k)
        weights = scaled.double().exp()
        if sampling.top_p < 1:
            enough = weights.sum() * sampling.top_p
            if candidates is None:
                scaled, candidates = _likeliest(scaled, enough)
                weights = scaled.double().exp()
            # Kept: every token before which less than top_p has gathered; so never none.
            outside = (weights.cumsum(-1) - weights) >= enough
            outside[:1].zero_()  # outside[0] = False would wait for the device
            weights = weights.masked_fill(outside, 0)
        gathered = weights.cumsum(-1)
        # right=True skips tokens of weight 0. The product can round up to the total: the minimum
        # then takes the last token that has weight. Among NaNs any place may come out; the clamp
        # keeps it an id, as the rest of a chain is computed before anybody looks at the peak.
        place = torch.searchsorted(gathered, gathered[-1:] * point, right=True)
        last = torch.searchsorted(gathered, gathered[-1:])
        place = torch.minimum(place, last).clamp(max=gathered.shape[0] - 1)
        # index_select, for candidates[place] would read the place back from the device.
        return (place if candidates is None else candidates.index_select(0, place))[0]


def make_sampler(sampling: Sampling, grammars: Grammars | None) -> Sampler:
    """The sampler of one request.

    :raises ~tilert_stream.errors.EngineFault: its grammar cannot be followed here.
    """
    if sampling.grammar is None:
        return Sampler(sampling)
    if grammars is None:
        raise EngineFault("this engine follows no grammar; install the package llguidance")
    return Sampler(sampling, grammars.matcher(sampling.grammar))


def sampler_capabilities(grammars: Grammars | None) -> frozenset[Capability]:
    """What a ``Sampler`` can do."""
    return _CAPABILITIES if grammars is None else _CAPABILITIES | _GRAMMAR


def _likeliest(scaled: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The likeliest tokens, in falling order, that together have at least ``weight``; or all.

    Sorting a vocabulary costs a fifth of a small model's step on CPU. There, where reading the sum
    is free, the few likeliest are tried first: they nearly always suffice.
    """
    if scaled.device.type == "cpu" and scaled.shape[0] > _FEW:
        values, ids = scaled.topk(_FEW)
        if values.double().exp().sum() >= weight:
            return values, ids
    values, ids = scaled.sort(descending=True, stable=True)
    return values, ids
