"""Claims that came before their reservation: kept for a moment, in case it is on its way.

A router that names the grant itself (``GrantId``) asks prefill and the decode node at once. The two
ways are of different length, and nobody promises that the shorter one is the faster.

What was refused, or is over, is remembered: whoever claims that holds a KV cache, and is told at
once. So is what prefill has claimed in vain: no grant is given by that name, since nobody would
bring a KV cache for it; the router sees another name, and has prefill asked again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from .grant_id import FORETOLD

if TYPE_CHECKING:
    from .messages import Claim

__all__ = ("EarlyClaims",)

PATIENCE: Final = 5.0
"""Seconds: a reservation that has not come by then never will."""
SHARE: Final = 32
"""Claims of one connection that are kept; one more is turned away at once."""
MOST: Final = 256
"""Claims of all connections that are kept."""
REMEMBERED: Final = 4096
"""Generations that are known to be over, the latest; and as many that were claimed in vain."""


@dataclass(frozen=True, slots=True)
class _Early:
    peer: int
    claim: Claim
    until: float


class EarlyClaims:
    """In the order in which they came."""

    def __init__(self) -> None:
        self._claims: list[_Early] = []
        # Apart: what peers say must not make this node forget what it has said itself.
        self._over = dict[int, None]()
        self._vain = dict[int, None]()

    def __len__(self) -> int:
        return len(self._claims)

    def has(self, peer: int, generation: int) -> bool:
        """Whether ``peer`` has claimed ``generation``, and waits."""
        return any(e.peer == peer and e.claim.generation == generation for e in self._claims)

    def is_spent(self, generation: int) -> bool:
        """Whether no grant may be given by that name (any more)."""
        return generation in self._over or generation in self._vain

    def keep(self, peer: int, claim: Claim, now: float) -> bool:
        """Keep it; False: no router has named such a grant, it is spent, or too many are kept."""
        if claim.generation < FORETOLD or self.is_spent(claim.generation):
            return False
        share = sum(each.peer == peer for each in self._claims)
        if share >= SHARE or len(self._claims) >= MOST:
            _remember(claim.generation, self._vain)
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
        _remember(generation, self._over)
        return self.take(generation)

    def give_up(self, generation: int) -> list[tuple[int, Claim]]:
        """``take`` them: prefill brings nothing for that name, whether it has claimed it or not."""
        _remember(generation, self._vain)
        return self.take(generation)

    def of(self, peer: int) -> list[int]:
        """The generations that ``peer`` has claimed."""
        return [each.claim.generation for each in self._claims if each.peer == peer]

    def late(self, now: float) -> list[tuple[int, Claim]]:
        """Give up those whose reservation has not come in time: a generation's all, or none."""
        late = dict.fromkeys(e.claim.generation for e in self._claims if e.until <= now)
        return [each for generation in late for each in self.give_up(generation)]

    @property
    def next_deadline(self) -> float | None:
        """When the next one is late; None: there is none."""
        return self._claims[0].until if self._claims else None


def _remember(generation: int, memory: dict[int, None]) -> None:
    if generation >= FORETOLD:
        memory[generation] = None
        if len(memory) > REMEMBERED:
            del memory[next(iter(memory))]
