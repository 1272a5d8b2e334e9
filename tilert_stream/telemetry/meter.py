"""Counts and histograms: requests that begin and end in, a reading out.

All numbers are plain ints and floats of the event loop's thread. They change when a request begins
or ends, never with a token. Complete requests are counted a few at a time: the client of a kept
connection has often sent the next one by then, and waits for it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ..errors import Cancelled
from ..lifecycle import State
from . import metrics
from .histogram import Histogram
from .metrics import METRICS
from .timeline import Timeline, phase_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..errors import TilertStreamError
    from ..events import Finished, PromptUsage
    from ..scope import RequestScope
    from .metrics import Metric
    from .record import RequestRecord

    _Complete = tuple[Timeline, Finished, RequestRecord | None, PromptUsage]

__all__ = ("Meter", "Reading")

RECEIVING: Final = "receiving"
"""The phase of a request that its client left before it was read."""
UNCOUNTED: Final = 16
"""So many complete requests may wait to be counted."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Every metric at one moment; nobody changes it any more."""

    gauges: Mapping[Metric, int]
    counters: Mapping[Metric, Mapping[str, int]]
    """By the metric's label; without one, by the empty string."""
    histograms: Mapping[Metric, Histogram]


class Meter:
    """An ``Observer`` that counts."""

    def __init__(self) -> None:
        # By identity: two nodes' requests in one process may have the same id.
        self._live: dict[int, RequestScope] = {}
        self._counters: dict[Metric, Counter[str]] = {}
        self._histograms: dict[Metric, Histogram] = {}
        self._uncounted: list[_Complete] = []
        for metric in METRICS:
            if metric.kind == "counter":
                self._counters[metric] = Counter()
            elif metric.kind == "histogram":
                self._histograms[metric] = Histogram(metric.bounds)

    def began(self, scope: RequestScope) -> None:
        """Count it among those that wait or run."""
        self._live[id(scope)] = scope

    def ended(self, scope: RequestScope, outcome: Finished) -> None:
        """Count all that is known of it, at the latest with the next reading."""
        self._live.pop(id(scope), None)
        self._uncounted.append((Timeline.of(scope), outcome, scope.record, scope.usage))
        if outcome.error is None and outcome.reason != "cancelled":
            if len(self._uncounted) >= UNCOUNTED:
                self._count_all()
            return
        # At once: an error holds on to the frames that it came through.
        self._count_all()
        if outcome.reason == "cancelled":
            self._count(metrics.CANCELLED, 1, phase_of(scope))
        elif outcome.error is not None:
            self._count_error(outcome.error)

    def _count_all(self) -> None:
        for timeline, outcome, record, usage in self._uncounted:
            self._count_times(timeline)
            if outcome.error is None and outcome.reason != "cancelled":
                self._count(metrics.FINISHED, 1, outcome.reason)
                self._observe(metrics.DURATION, timeline.total)
                self._observe(metrics.TPOT, timeline.time_per_output_token)
            if record is not None and timeline.tokens:
                self._count_tokens(record, usage, timeline)
            self._count_drafts(outcome)
        self._uncounted.clear()

    def refused(self, record: RequestRecord, error: TilertStreamError) -> None:
        """Count why."""
        if isinstance(error, Cancelled):
            self._count(metrics.CANCELLED, 1, RECEIVING)
        else:
            self._count_error(error)

    def delivered(self, nbytes: int, seconds: float) -> None:
        """Count a KV cache that a prefill node has handed over."""
        self._count(metrics.KV_BYTES, nbytes)
        self._observe(metrics.KV, seconds)

    def _count_times(self, timeline: Timeline) -> None:
        self._observe(metrics.QUEUE, timeline.queue)
        self._observe(metrics.PREFILL, timeline.prefill)
        self._observe(metrics.TTFT, timeline.time_to_first_token)
        self._observe(metrics.KV, timeline.kv_import)
        if timeline.tokens > 1:
            self._observe(metrics.DECODE, timeline.decode)

    def _count_tokens(self, record: RequestRecord, usage: PromptUsage, timeline: Timeline) -> None:
        self._histograms[metrics.ITL].add(record.tokens.gaps, timeline.decode or 0.0)
        self._count(metrics.PROMPT_TOKENS, usage.prompt_tokens)
        self._count(metrics.CACHED_TOKENS, usage.cached_tokens or 0)
        self._count(metrics.GENERATION_TOKENS, record.answer_tokens)
        self._count(metrics.KV_BYTES, record.kv_bytes)
        self._observe(metrics.PROMPT_LENGTH, usage.prompt_tokens)
        self._observe(metrics.ANSWER_LENGTH, record.answer_tokens)

    def _count_drafts(self, outcome: Finished) -> None:
        account = outcome.account or {}
        calls, mean = account.get("mtp_verify_calls"), account.get("mtp_accept_mean")
        if isinstance(calls, int) and isinstance(mean, float | int):
            self._count(metrics.MTP_CALLS, calls)
            # The mean has each step's own token in it, which no draft was needed for.
            self._count(metrics.MTP_ACCEPTED, max(round(calls * mean) - calls, 0))

    def _count_error(self, error: TilertStreamError) -> None:
        # The class's code, never an instance's: an upstream's words are no label.
        self._count(metrics.ERRORS, 1, type(error).code)

    def _count(self, metric: Metric, amount: int, label: str = "") -> None:
        self._counters[metric][label] += amount

    def _observe(self, metric: Metric, value: float | None) -> None:
        if value is not None:
            self._histograms[metric].observe(value)

    def reading(self) -> Reading:
        """All numbers as they stand."""
        self._count_all()
        live = len(self._live)
        waiting = sum(s.lifecycle.state is State.QUEUED for s in self._live.values())
        return Reading(
            gauges={metrics.RUNNING: live - waiting, metrics.WAITING: waiting},
            counters={metric: dict(counts) for metric, counts in self._counters.items()},
            histograms={metric: each.copy() for metric, each in self._histograms.items()},
        )
