"""Requests that are played on a clock of the test's own, without an engine or an event loop."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

from tilert_stream.events import GenerateRequest, TokenBatch
from tilert_stream.lifecycle import Lifecycle, State
from tilert_stream.scope import RequestScope
from tilert_stream.telemetry.record import RequestRecord, Tally
from tilert_stream.testing import make_scope


@dataclass
class Clock:
    """Shows what the test sets it to."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Played:
    """A request, and the clock that everything in it is noted by."""

    scope: RequestScope
    record: RequestRecord
    clock: Clock

    def move(self, now: float, state: State) -> None:
        self.clock.now = now
        self.scope.lifecycle.move(state)

    def tokens(self, now: float, *batches: int) -> None:
        """One wake, with batches of so many tokens each."""
        self.clock.now = now
        self.record.tokens.note([TokenBatch(tuple(range(size))) for size in batches])


@contextmanager
def played(
    request: GenerateRequest | None = None,
    *,
    begun: float = 100.0,
    record: RequestRecord | None = None,
) -> Generator[Played]:
    """A request that waits since ``begun``."""
    clock = Clock(begun)
    record = RequestRecord() if record is None else record
    record.tokens = Tally(clock)
    with make_scope(request) as scope:
        scope.lifecycle = Lifecycle(clock)
        scope.record = record
        yield Played(scope, record, clock)


def whole(request: Played) -> None:
    """A request that went all the way: 0.5 s of queue, 0.25 of prefill, 0.125 of KV import, and
    seven tokens, 0.875 s from the first to the last; it ended 2 s after it began."""
    request.move(100.5, State.RESERVED)
    request.move(100.5, State.PREFILLING)
    request.move(100.75, State.IMPORTING_KV)
    request.tokens(100.75, 1)
    request.move(100.875, State.DECODING)
    request.tokens(101.25, 2)
    request.tokens(101.625, 1, 3)
    request.move(102.0, State.DONE)
