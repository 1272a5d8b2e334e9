"""What is noted of one request while it runs, beside the states that its lifecycle notes.

In: what the server knows before it begins, and its tokens, a wake at a time. Out: what observers
read when it has ended. Everything belongs to the event loop's thread.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..events import TokenBatch
from ..lifecycle import CLOCK
from .histogram import GAP_BOUNDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ("RequestRecord", "Tally")


class Tally:
    """When a request's tokens came, and how long one took after the other.

    Tokens come to a reader in wakes. The time since the last wake belongs to the tokens of this one
    in equal parts, so that there are as many times as tokens after the first, and their sum is the
    time from the first token to the last. What came together with the first token took no time.

    :param clock: seconds; the one that the request's states are noted by.
    """

    __slots__ = ("_clock", "_gaps", "count", "first", "last")

    def __init__(self, clock: Callable[[], float] = CLOCK) -> None:
        self._clock = clock
        self.count = 0
        self.first = 0.0
        """Seconds on the clock; means nothing while ``count`` is 0, like ``last``."""
        self.last = 0.0
        # Made with the second token: a request that waits for it is as small as can be.
        self._gaps: list[int] | None = None

    @property
    def gaps(self) -> list[int]:
        """Times between tokens, counted by ``GAP_BOUNDS``."""
        return _no_gaps() if self._gaps is None else self._gaps

    def note(self, items: Iterable[object]) -> None:
        """Count the tokens among ``items``, which one wake has brought."""
        tokens = 0
        for item in items:
            if isinstance(item, TokenBatch):
                tokens += len(item.ids)
        if not tokens:
            return
        now = self._clock()
        if self.count + tokens > 1 and self._gaps is None:
            self._gaps = _no_gaps()
        if self._gaps is not None:
            if self.count:
                self._gaps[bisect_left(GAP_BOUNDS, (now - self.last) / tokens)] += tokens
            else:
                self._gaps[0] += tokens - 1
        if not self.count:
            self.first = now
        self.count += tokens
        self.last = now


def _no_gaps() -> list[int]:
    return [0] * (len(GAP_BOUNDS) + 1)


@dataclass(slots=True)
class RequestRecord:
    """One request, as metrics and log lines tell of it."""

    refused_as: str | None = None
    """The id that its answer has if it is refused, before it has one of its own."""
    endpoint: str | None = None
    """The path that it came by; None without HTTP."""
    model: str | None = None
    """The name that the client used, one of those that are served."""
    stream: bool | None = None
    """Whether the answer is sent as it is made."""
    client_id: str | None = None
    """The client's own name for it, cleaned."""
    status: int | None = None
    """The HTTP status that has left."""
    completion_tokens: int | None = None
    """As the answer's usage has it; None where none was made."""
    kv_bytes: int = 0
    """Of its KV cache, come in from another process."""
    tokens: Tally = field(default_factory=Tally)

    @property
    def answer_tokens(self) -> int:
        """Tokens of the answer: what its usage says, else what has come."""
        return self.tokens.count if self.completion_tokens is None else self.completion_tokens
