"""What a request's chains came to: ids and accepted lengths in, harvests and counts out.

A step is *consumed* if one of its tokens belongs to the answer. The step that meets a stop token or
the end of the budget is consumed, and counts with all that it accepted: that is what the device
did. Steps after it are *overrun*: they were computed, nobody reads them. The opening step of MTP,
which only brings the device to where prefill was, is a forward and nothing else. TileRT's
``mtp_verify_calls`` and ``mtp_accept_mean`` mean the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypedDict

from tilert_stream.events import Harvest, TokenBatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tilert_stream.events import Finished, FinishReason, Limits, TokenLogprob

__all__ = ("Account", "Ledger")


class Account(TypedDict, total=False):
    """A request's counts, under TileRT's names where it has them."""

    finish_reason: FinishReason
    """Absent while the request runs, and where it was given up."""
    forwards: int
    """Steps that the device took, opening and overrun included."""
    overrun: int
    """Steps of them that came after the one that ended the request."""
    mtp_verify_calls: int
    """Consumed steps; only with MTP, like the next."""
    mtp_accept_mean: float
    """Tokens that a consumed step accepted, on average, to three places."""


@dataclass(slots=True)
class Ledger:
    """The counts of one request, from prefill's token on.

    :param limits: where the request ends.
    :param mtp: whether steps verify drafts.
    """

    limits: Limits
    mtp: bool = False
    emitted: int = 1
    """Tokens of the answer so far; the first is prefill's."""
    forwards: int = 0
    consumed: int = 0
    accepted: int = 0
    """Tokens of the consumed steps, also those beyond the answer's end."""
    overrun: int = 0
    finished: Finished | None = field(default=None, init=False)

    @property
    def remaining(self) -> int:
        """Tokens that the budget still has room for."""
        return self.limits.max_tokens - self.emitted

    def opened(self) -> None:
        """Count MTP's opening step, whose tokens are thrown away."""
        self.forwards += 1

    def overran(self, steps: int) -> None:
        """Count steps enqueued behind the one that ended the request; before ``take`` books that.

        They belong to chains that nobody reads, or yielded nothing as the device knew the end.
        """
        self.forwards += steps
        self.overrun += steps

    def take(
        self,
        ids: Sequence[int],
        accepted: Sequence[int],
        logprobs: Sequence[TokenLogprob] | None = None,
    ) -> Harvest:
        """Book a chain.

        :param ids: what its steps yielded, one step's after the other's.
        :param accepted: how many of ``ids`` each step yielded, at least one.
        :param logprobs: one an id; None: they were not asked for.
        :raises ValueError: the two do not fit together, or the request is over.
        """
        if self.finished is not None:
            raise ValueError("this request is over; a further chain belongs to nobody")
        if sum(accepted) != len(ids) or any(count < 1 for count in accepted):
            raise ValueError(
                f"{len(ids)} ids came from steps of {list(accepted)} tokens; each step yields at"
                " least 1, and together they yield all ids"
            )
        kept, finished = self.limits.cut(ids, self.emitted)
        self.emitted += kept
        self._count(accepted, kept)
        if finished is not None:
            self.finished = replace(finished, account=self._account(finished.reason))
        stopped = finished is not None and finished.reason == "stop"
        told = None if logprobs is None else tuple(logprobs[:kept])
        return Harvest(TokenBatch(tuple(ids[:kept]), told, stopped), self.finished)

    def _count(self, accepted: Sequence[int], kept: int) -> None:
        self.forwards += len(accepted)
        start = 0
        for count in accepted:
            if start < kept:
                self.consumed += 1
                self.accepted += count
            else:
                self.overrun += 1
            start += count

    def account(self) -> Account:
        """The counts as they stand. Those of a request that is over ride on its ``Finished``."""
        return self._account(None if self.finished is None else self.finished.reason)

    def _account(self, reason: FinishReason | None) -> Account:
        account = Account(forwards=self.forwards, overrun=self.overrun)
        if reason is not None:
            account["finish_reason"] = reason
        # TileRT reports no means of nothing: a request that prefill ended has no verify calls.
        if self.mtp and self.consumed:
            account["mtp_verify_calls"] = self.consumed
            account["mtp_accept_mean"] = round(self.accepted / self.consumed, 3)
        return account
