"""Claims that came before their reservation: kept for a moment, in case it is on its way.

A router that names the grant itself (``GrantId``) asks prefill and the decode node at once. The two
ways are of different length, and nobody promises that the shorter one is the faster. What was
refused, or is over, is remembered: whoever claims that holds a KV cache, and is told at once.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from .grant_id import FORETOLD

if TYPE_CHECKING:
    from .messages import Claim

__all__ = ("EarlyClaims",)

PATIENCE: Final = 5.0
"""Seconds: a reservation that has not come by then never will."""
MOST: Final = 256
"""Claims that are kept; one more is refused at once."""
REMEMBERED: Final = 4096
"""Generations that are known to be over, the latest."""


@dataclass(frozen=True, slots=True)
class _Early:
    peer: int
    claim: Claim
    until: float


class EarlyClaims:
    """In the order in which they came."""

    def __init__(self) -> None:
        self._claims: list[_Early] = []
        self._over: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._claims)

    def keep(self, peer: int, claim: Claim, now: float) -> bool:
        """Keep it; False: no router has named such a grant, it is over, or too many are kept."""
        if claim.generation < FORETOLD or claim.generation in self._over:
            return False
        if len(self._claims) >= MOST:
            return False
        self._claims.append(_Early(peer, claim, now + PATIENCE))
        return True

    def take(self, generation: int) -> list[tuple[int, Claim]]:
        """Those on ``generation``, each with its peer."""
        found = [each for each in self._claims if each.claim.generation == generation]
        self._claims = [each for each in self._claims if each.claim.generation != generation]
        return [(each.peer, each.claim) for each in found]

    def end(self, generation: int) -> list[tuple[int, Claim]]:
        """``take`` them: no reservation of that name will come, or come again."""
        if generation >= FORETOLD:
            self._over[generation] = None
            if len(self._over) > REMEMBERED:
                self._over.popitem(last=False)
        return self.take(generation)

    def forget(self, peer: int, generation: int | None = None) -> bool:
        """Drop those of ``peer``, all of them or one generation's; whether there was any."""
        kept = [
            each
            for each in self._claims
            if each.peer != peer or generation not in (None, each.claim.generation)
        ]
        found = len(kept) < len(self._claims)
        self._claims = kept
        return found

    def late(self, now: float) -> list[tuple[int, Claim]]:
        """Take those whose reservation has not come in time."""
        late = [each for each in self._claims if each.until <= now]
        self._claims = [each for each in self._claims if each.until > now]
        return [(each.peer, each.claim) for each in late]

    @property
    def next_deadline(self) -> float | None:
        """When the next one is late; None: there is none."""
        return self._claims[0].until if self._claims else None
