"""A claim and the reservation that it names in; why it cannot be let in, or None, out.

A rank's fault is its own, and the right one can still come. The others end the reservation: it is
the right sender, and would bring nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .errors import HandOffFailed, PromptMismatch

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from .messages import Claim
    from .reservation import Reservation

__all__ = ("prompt_fault", "rank_fault", "size_fault")


def rank_fault(held: Reservation, claim: Claim, ranks: AbstractSet[int]) -> str | None:
    """A rank that sends nothing, or that has been let in.

    :param ranks: that send.
    """
    if claim.rank not in ranks:
        known = ", ".join(map(str, sorted(ranks)))
        return f"rank {claim.rank} sends nothing in this layout; ranks {known} do"
    if claim.rank in held.writers:
        return f"rank {claim.rank} of this grant was claimed by another connection"
    return None


def size_fault(held: Reservation, claim: Claim) -> HandOffFailed | None:
    """More than was reserved."""
    if claim.tokens > held.max_tokens:
        return HandOffFailed(
            f"the prompt has {claim.tokens} tokens; {held.max_tokens} are reserved"
        )
    if claim.nbytes > held.region.nbytes:
        return HandOffFailed(
            f"the KV cache has {claim.nbytes} bytes; the region {held.region.nbytes}"
        )
    return None


def prompt_fault(held: Reservation, claim: Claim) -> PromptMismatch | None:
    """The KV cache of another prompt than the router has named, or than another rank sends."""
    if held.prompt is not None and claim.prompt != held.prompt:
        return PromptMismatch(
            f"prefill has the KV cache of {claim.prompt}; request {held.request} is {held.prompt}"
        )
    for other in held.writers.values():
        if claim.prompt != other.claim.prompt:
            return PromptMismatch(
                f"rank {claim.rank} sends the KV cache of {claim.prompt}, rank {other.claim.rank}"
                f" that of {other.claim.prompt}"
            )
    return None
