"""The states of a request, as a table.

Rules:

1. A request moves forward only. A pipeline that lacks a step skips its state, for good.
2. It may be DONE from any state: a step can answer by itself (the first token is a stop token, a
   cached answer), and a stop string can match while the KV cache is still travelling.
3. It may fail or be cancelled from any state in which it lives.
4. The three ends are final: whoever comes second is told so, and changes nothing.

::

    QUEUED ─► RESERVED ─► PREFILLING ─► IMPORTING_KV ─► DECODING
       └─────────┴────────────┴──────────────┴─────────────┴──► DONE | FAILED | CANCELLED
"""

from __future__ import annotations

import time
from enum import Enum
from typing import TYPE_CHECKING, Final

from .errors import LifecycleError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ("CLOCK", "ENDS", "TRANSITIONS", "Lifecycle", "State")


CLOCK: Final = time.perf_counter
"""Seconds on the clock of all that is noted about a request; the same on every thread."""


class State(Enum):
    """Where a request stands."""

    # Members are equal to nothing but themselves; Enum hashes their names, in Python.
    __hash__ = object.__hash__

    QUEUED = "queued"
    """Valid, and waiting for a decode slot."""
    RESERVED = "reserved"
    """Accepted: a slot is held, the lengths and layouts fit."""
    PREFILLING = "prefilling"
    """The prompt is being computed."""
    IMPORTING_KV = "importing_kv"
    """The first token has left; the KV cache is on its way into the slot."""
    DECODING = "decoding"
    """Tokens flow."""
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


ENDS: Final = frozenset({State.DONE, State.FAILED, State.CANCELLED})

_ORDER: Final = (
    State.QUEUED,
    State.RESERVED,
    State.PREFILLING,
    State.IMPORTING_KV,
    State.DECODING,
)

TRANSITIONS: Final[Mapping[State, frozenset[State]]] = {
    **{state: frozenset(_ORDER[place:]) | ENDS for place, state in enumerate(_ORDER, start=1)},
    **dict.fromkeys(ENDS, frozenset[State]()),
}


class Lifecycle:
    """The state of one request, and when it entered each."""

    __slots__ = ("_clock", "entered", "state")

    def __init__(self, clock: Callable[[], float] = CLOCK) -> None:
        self._clock = clock
        self.state = State.QUEUED
        self.entered: dict[State, float] = {State.QUEUED: clock()}
        """Seconds on ``CLOCK``, for each state so far."""

    def move(self, state: State) -> None:
        """Go on to ``state``.

        :raises ~tilert_stream.errors.LifecycleError: the table has no such transition.
        """
        if state not in TRANSITIONS[self.state]:
            allowed = ", ".join(sorted(s.value for s in TRANSITIONS[self.state])) or "nothing"
            raise LifecycleError(f"{self.state.value} leads to {allowed}, not to {state.value}")
        self.state = state
        self.entered[state] = self._clock()

    def end(self, state: State) -> bool:
        """Enter one of the ends; False if the request has ended already (rule 4)."""
        if self.state in ENDS:
            return False
        self.move(state)
        return True
