"""Where a request's time went: its states and tokens in, seconds and milliseconds out.

::

    begun ─ queue ─► reserved ─ prefill ─► first token ─ KV import ─► decoding ── … ──► last ─► end
      └────── time to first token ────────────┘└─────────────── decode ──────────────────┘       │
      └───────────────────────────────────── total ──────────────────────────────────────────────┘
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..lifecycle import CLOCK, ENDS, State

if TYPE_CHECKING:
    from ..scope import RequestScope

__all__ = ("Timeline", "phase_of")


class Timeline(NamedTuple):
    """Seconds on ``CLOCK``; None where the request did not come so far, or skipped it."""

    begun: float
    end: float
    """When it ended, or when this was asked for."""
    reserved: float | None = None
    prefilling: float | None = None
    importing: float | None = None
    decoding: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    tokens: int = 0
    """That have come."""

    @classmethod
    def of(cls, scope: RequestScope, *, now: float | None = None) -> Timeline:
        """The timeline of ``scope``'s request so far.

        :param now: what a request that still runs ends by; None reads the clock.
        """
        entered, state = scope.lifecycle.entered, scope.lifecycle.state
        end = entered[state] if state in ENDS else now
        tokens = scope.record.tokens if scope.record is not None else None
        seen = tokens is not None and tokens.count > 0
        return cls(
            begun=entered[State.QUEUED],
            end=CLOCK() if end is None else end,
            reserved=entered.get(State.RESERVED),
            prefilling=entered.get(State.PREFILLING),
            importing=entered.get(State.IMPORTING_KV),
            decoding=entered.get(State.DECODING),
            first_token=tokens.first if tokens is not None and seen else None,
            last_token=tokens.last if tokens is not None and seen else None,
            tokens=tokens.count if tokens is not None else 0,
        )

    @property
    def queue(self) -> float | None:
        """The wait for a decode slot; where there is none, for the engine to begin."""
        begins = self.prefilling if self.reserved is None else self.reserved
        return _between(self.begun, begins)

    @property
    def prefill(self) -> float | None:
        """Computing the prompt, calls and ways included."""
        ends = self.first_token if self.importing is None else self.importing
        return _between(self.prefilling, ends)

    @property
    def kv_import(self) -> float | None:
        """From the first token to the KV cache in its slot: the hand-off."""
        return _between(self.importing, self.decoding)

    @property
    def time_to_first_token(self) -> float | None:
        """From the request to its first token."""
        return _between(self.begun, self.first_token)

    @property
    def decode(self) -> float | None:
        """From the first token to the last."""
        return _between(self.first_token, self.last_token)

    @property
    def time_per_output_token(self) -> float | None:
        """``decode``, for each token after the first."""
        decode = self.decode
        return decode / (self.tokens - 1) if decode is not None and self.tokens > 1 else None

    @property
    def total(self) -> float:
        """From the request to its end."""
        return self.end - self.begun

    def milliseconds(self) -> dict[str, float]:
        """Every part that there is, to the microsecond, in the order of their ends."""
        parts = {
            "queue": self.queue,
            "prefill": self.prefill,
            "first_token": self.time_to_first_token,
            "kv_import": self.kv_import,
            "decode": self.decode,
            "total": self.total,
        }
        return {name: round(s * 1000, 3) for name, s in parts.items() if s is not None}

    def server_timing(self) -> str:
        """The value of a ``Server-Timing`` header (W3C), which browsers show beside an answer."""
        return ", ".join(f"{name};dur={spent:g}" for name, spent in self.milliseconds().items())


def phase_of(scope: RequestScope) -> str:
    """The state in which the request is, or was when it ended."""
    return next(state for state in reversed(scope.lifecycle.entered) if state not in ENDS).value


def _between(since: float | None, until: float | None) -> float | None:
    return None if since is None or until is None else until - since
