"""How long each part of a request may take, and which part has taken too long.

In: where a request stands and when its last token came. Out: the time of the next look at it, or
the error that ends it. Nothing here waits: the service's ``Watchdog`` does.

::

    start ──── RESERVED ─ PREFILLING ──── first token ─ IMPORTING_KV ─ DECODING ── … ── end
      │           │           └─ prefill ─┘                 └─ kv ─┘      └ inter-token ┘ each
      │           └────── first token ────┘
      └──────────────────────────────── total ───────────────────────────────────────────┘

The wait for a slot has its limit in the admission queue, a client that takes nothing in the server.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import inf
from typing import TYPE_CHECKING, Final

from .errors import (
    FirstTokenTimeout,
    InterTokenTimeout,
    KVTimeout,
    PrefillTimeout,
    Timeout,
    TotalTimeout,
)
from .lifecycle import State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .scope import RequestScope

__all__ = ("TimeLimits",)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLimits:
    """Seconds, each from the moment that it says; ``inf`` is no limit.

    :raises ValueError: one is not above 0.
    """

    prefill: float = 300
    """From the call of the prefill node to its answer."""
    kv: float = 120
    """From the first token to the KV cache in the slot."""
    first_token: float = 600
    """From the reservation to the first token."""
    inter_token: float = 120
    """From the beginning of decoding, and from each token, to the next one or the end."""
    total: float = inf
    """From the request's start to its last token, the wait for a slot included."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value: float = getattr(self, field.name)
            if not value > 0:
                raise ValueError(f"the time limit {field.name} is {value}; it must be above 0")

    @property
    def shortest(self) -> float:
        """No limit runs out sooner than this after it begins to count."""
        return min(self.prefill, self.kv, self.first_token, self.inter_token, self.total)

    def examine(self, scope: RequestScope, now: float) -> Timeout | float:
        """What has run out at ``now``, or when the first of those that count now will.

        :param now: seconds on ``Lifecycle``'s clock.
        """
        first = inf
        for since, error in self._counting(scope):
            limit: float = getattr(self, _FIELDS[error])
            if now - since >= limit:
                return error(
                    _MESSAGES[error].format(limit)
                    + f" the operator can raise {_FIELDS[error]}_timeout"
                )
            first = min(first, since + limit)
        return first

    def _counting(self, scope: RequestScope) -> Iterator[tuple[float, type[Timeout]]]:
        lifecycle, tokens = scope.lifecycle, scope.mailbox.statistics()
        entered, state = lifecycle.entered, lifecycle.state
        if not tokens.finished:
            if state is State.PREFILLING:
                yield entered[state], PrefillTimeout
            elif state is State.IMPORTING_KV:
                yield entered[state], KVTimeout
            elif tokens.items:
                yield max(tokens.last_put, entered[state]), InterTokenTimeout
            if not tokens.items and State.RESERVED in entered:
                yield entered[State.RESERVED], FirstTokenTimeout
        yield entered[State.QUEUED], TotalTimeout


_FIELDS: Final[dict[type[Timeout], str]] = {
    PrefillTimeout: "prefill",
    KVTimeout: "kv",
    FirstTokenTimeout: "first_token",
    InterTokenTimeout: "inter_token",
    TotalTimeout: "total",
}

_MESSAGES: Final[dict[type[Timeout], str]] = {
    PrefillTimeout: "the prompt was not computed within {:g} s: send a shorter one or try again;",
    KVTimeout: "the KV cache did not reach the decode slot within {:g} s: try again;",
    FirstTokenTimeout: "no token came within {:g} s: send a shorter prompt or try again;",
    InterTokenTimeout: "no further token came within {:g} s: try again;",
    TotalTimeout: "the answer was not complete within {:g} s: ask for fewer tokens or try again;",
}
