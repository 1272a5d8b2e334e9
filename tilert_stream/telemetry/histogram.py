"""Counts by size: values in, how many were at most so large out. Plain ints, no lock, no labels."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ("GAP_BOUNDS", "SECONDS_BOUNDS", "TOKEN_BOUNDS", "Histogram")

SECONDS_BOUNDS: Final = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0),
)
"""Seconds of a request's parts: from a hand-off inside one process to a whole long answer."""
GAP_BOUNDS: Final = (
    *(0.0001, 0.0002, 0.0005, 0.001, 0.0015, 0.002, 0.003, 0.004, 0.005, 0.0075, 0.01, 0.015),
    *(0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0),
)
"""Seconds between tokens: finest where an engine makes one in a millisecond or a few."""
TOKEN_BOUNDS: Final = (
    *(1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0),
    *(20000.0, 50000.0, 100000.0, 200000.0),
)
"""Tokens of a prompt or an answer."""


class Histogram:
    """Counts of values by the least bound that is not below them.

    :param bounds: rising; what is above the last is counted too.
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """One a bound, and one for what is above all of them."""
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count ``value``."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def add(self, counts: Sequence[int], total: float) -> None:
        """Count what somebody else has counted by the same bounds.

        :param total: the sum of the values.
        """
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, counts, strict=True)]
        self.sum += total

    def copy(self) -> Histogram:
        """The counts as they stand."""
        copied = Histogram(self.bounds)
        copied.add(self.counts, self.sum)
        return copied

    def cumulative(self) -> list[int]:
        """For each bound how many values were at most that; at last, how many there were."""
        return list(accumulate(self.counts))
