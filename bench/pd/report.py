"""Which figures of a run are shown, and as what charts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bench.plots import Plot
from bench.report import Metric

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ("METRICS", "PLOTS")

METRICS: Final[Sequence[Metric]] = (
    Metric("first_p50", "Time to first token, prefill's 20 ms taken off, p50 (µs)", 0),
    Metric("transit_p50", "Transit of a token, decode node to client, p50 (µs)", 0),
    Metric("transit_p99", "Transit of a token, decode node to client, p99 (µs)", 0),
    Metric("gap_p50", "End-of-stream gap, p50 (µs)", 0),
    Metric("gap_p99", "End-of-stream gap, p99 (µs)", 0),
    Metric("cpu_us", "CPU time of the router a token, whole requests (µs)"),
    Metric("tokens_per_chunk", "Tokens a chunk", 2),
    Metric("tokens_per_second", "Tokens a second", 0),
    Metric("unfinished", "Answers that did not end", 0),
    Metric("leave_p50", "From a client's leaving to the decode node's knowing, p50 (ms)", 2, 1e-3),
    Metric("leave_p99", "From a client's leaving to the decode node's knowing, p99 (ms)", 2, 1e-3),
)

PLOTS: Final[Sequence[Plot]] = (
    Plot(
        "bench-pd-transit.svg",
        "Transit of a token through a router, p50, µs (a token every 5 ms)",
        (("1 stream", "1 @ 5 ms", "transit_p50"), ("8 streams", "8 @ 5 ms", "transit_p50")),
    ),
    Plot(
        "bench-pd-ends.svg",
        "From the last token to [DONE], and added to the first token, p50, µs",
        (("end-of-stream gap", "1 @ 5 ms", "gap_p50"), ("first token", "1 @ 5 ms", "first_p50")),
    ),
    Plot(
        "bench-pd-cpu.svg",
        "CPU time of a router a token, no pause between tokens, µs",
        tuple((f"{count} streams", f"{count} @ 0 ms", "cpu_us") for count in (8, 64, 256)),
    ),
)
