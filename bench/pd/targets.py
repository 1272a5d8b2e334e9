"""What the router must reach, and whether a run shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bench.targets import Target

from .routers import OURS, RUST

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.results import Results

__all__ = ("targets",)

FLOOR: Final = "relay"
PACED: Final = ("1 @ 5 ms", "8 @ 5 ms", "1 @ 1 ms", "8 @ 1 ms")
"""Loads that leave the machine idle in between: what is measured is the router, not a queue."""
FLOODS: Final = ("8 @ 0 ms", "64 @ 0 ms", "256 @ 0 ms")
CROWDS: Final = ("256 @ 0 ms", "256 @ 1 ms", "256 @ 5 ms")


def targets(results: Results) -> Iterator[Target]:
    """Every promise, for each of our event loops. Comparisons are paired round by round."""
    for host in OURS:
        more = results.excess(host, FLOOR, "1 @ 5 ms", "first_p50")
        yield Target(host, "time to first token, µs above relay", more, 1000)
        for load in PACED:
            more = results.excess(host, FLOOR, load, "transit_p50")
            yield Target(host, f"{load}: transit_p50, µs above relay", more, 150)
            ratio = results.ratio(host, FLOOR, load, "transit_p99")
            yield Target(host, f"{load}: transit_p99, × relay", ratio, 2)
            more = results.excess(host, FLOOR, load, "gap_p50")
            yield Target(host, f"{load}: gap_p50, µs above relay", more, 200)
        for load in FLOODS:
            peers = [results.ratio(host, peer, load, "cpu_us") for peer in RUST]
            worst = max((ratio for ratio in peers if ratio is not None), default=None)
            yield Target(host, f"{load}: CPU a token, × the best Rust router", worst, 1)
        for load in CROWDS:
            lost = results.median(host, load, "unfinished")
            yield Target(host, f"{load}: answers that did not end", lost, 0)
        for load in ("leaving @ 5 ms", "leaving @ 400 ms"):
            noticed = results.median(host, load, "leave_p50")
            yield Target(host, f"{load}: noticed, µs", noticed, 5000)
