"""One grant of a landing region, from its reservation to the moment that nobody can write to it.

::

    RESERVED ─► WRITING ─► LANDED ─► TAKEN ──► ENDED
        └──────────┴──────────┴────────┴──► QUARANTINED ─► ENDED

Rules:

1. A reservation ends once. Who holds it is told so, unless it ended it.
2. It is quarantined if, at its end, a writer has neither committed nor said that it stopped.
3. A writer has stopped when it said so (``COMMIT``, ``ABORT`` that is settled, ``RELEASED``), or
   when it has been gone for so long that nothing of it can be on its way. That its transport's
   connection has ended proves nothing: a writer that lives connects again.
   A writer that is there and says nothing is never taken for stopped.
4. Landed is not taken: the cache of one grant is used once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .errors import ControlError
    from .messages import Claim
    from .prompt import PromptIdentity
    from .regions import LandingRegion

__all__ = (
    "Event",
    "Failed",
    "Granted",
    "Landed",
    "Progressed",
    "Reservation",
    "State",
    "Writer",
    "WriterState",
)


class State(Enum):
    """Where a reservation stands."""

    RESERVED = "reserved"
    """Held for a request; nobody may write yet."""
    WRITING = "writing"
    """At least one rank has been let in."""
    LANDED = "landed"
    """All ranks have committed."""
    TAKEN = "taken"
    """The decode engine reads it; no lease runs any more."""
    QUARANTINED = "quarantined"
    """Over, but a writer may not have stopped."""
    ENDED = "ended"
    """Over: the region is free."""


class WriterState(Enum):
    """What is known of one rank's writer."""

    WRITING = "writing"
    STOPPED = "stopped"
    """Nothing of it can land any more."""
    LOST = "lost"
    """Its connection has ended while it was writing."""


@dataclass(slots=True)
class Writer:
    """One rank of prefill."""

    peer: int
    claim: Claim
    state: WriterState = WriterState.WRITING
    committed: bool = False
    checksum: int | None = None
    planes: int = 0
    lost_at: float = 0.0


@dataclass(slots=True)
class Reservation:
    """The receiver's own record of one generation."""

    request: str
    generation: int
    region: LandingRegion
    max_tokens: int
    deadline: float
    """When its lease runs out."""
    dies_at: float
    """However often it is renewed, it never lives longer."""
    prompt: PromptIdentity | None = None
    """The request's, where its router has told it: no other one's cache is let in."""
    state: State = State.RESERVED
    claimed: bool = False
    """Its request has come, and sees to its end."""
    writers: dict[int, Writer] = field(default_factory=dict[int, Writer])
    """By rank."""

    def writer_of(self, peer: int) -> Writer | None:
        """The writer behind one connection."""
        return next((writer for writer in self.writers.values() if writer.peer == peer), None)

    @property
    def is_over(self) -> bool:
        """Whether nobody waits for it any more."""
        return self.state in (State.QUARANTINED, State.ENDED)

    @property
    def is_leased(self) -> bool:
        """Whether it expires."""
        return not (self.is_over or self.claimed or self.state is State.TAKEN)

    @property
    def may_be_written(self) -> bool:
        """Whether bytes can still land (rule 3)."""
        return any(writer.state is not WriterState.STOPPED for writer in self.writers.values())

    def landed(self) -> Landed:
        """What a holder learns of a complete hand-off."""
        first = next(iter(self.writers.values())).claim
        sums = {r: w.checksum for r, w in self.writers.items() if w.checksum is not None}
        return Landed(
            self.generation,
            self.request,
            self.region,
            first.tokens,
            first.last_token,
            sums,
            sum(writer.claim.nbytes for writer in self.writers.values()),
        )


@dataclass(frozen=True, slots=True)
class Granted:
    """A reservation as its holder knows it; what the router takes to prefill."""

    request: str
    incarnation: str
    generation: int
    region: LandingRegion
    ttl: float
    """Seconds until it expires, unless it is renewed."""


@dataclass(frozen=True, slots=True)
class Progressed:
    """The first ``planes`` planes of a rank have landed."""

    generation: int
    rank: int
    planes: int


@dataclass(frozen=True, slots=True)
class Landed:
    """A whole KV cache lies in its region."""

    generation: int
    request: str
    region: LandingRegion
    tokens: int
    """Of the prompt, as prefill says."""
    last_token: int
    """The prompt's last id, as prefill says."""
    checksums: Mapping[int, int]
    """CRC-32 by rank, of the ranks that gave one."""
    nbytes: int = 0
    """That all ranks have sent, as they say."""


@dataclass(frozen=True, slots=True)
class Failed:
    """A reservation ended before it was taken, and not by its holder."""

    generation: int
    request: str
    error: ControlError


Event = Progressed | Landed | Failed
