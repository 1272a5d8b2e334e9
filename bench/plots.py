"""Figures of a run in, the charts of docs/benchmarks.md out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from .svg import bars

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from .results import Results

__all__ = ("Plot", "write_plots")


@dataclass(frozen=True, slots=True)
class Plot:
    """One chart: a figure under several loads, or several figures under one."""

    file: str
    title: str
    bars: tuple[tuple[str, str, str], ...]
    """Each bar's label, load and figure."""


PLOTS: Final = (
    Plot(
        "bench-cpu.svg",
        "CPU time a token at 64 streams, µs",
        (("one a wake", "busy 64×1", "loop_us"), ("four a wake", "busy 64×4", "loop_us")),
    ),
    Plot(
        "bench-streams.svg",
        "CPU time a token by number of streams, one token a wake, µs",
        tuple((f"{n} streams", f"busy {n}×1", "loop_us") for n in (1, 8, 64, 256)),
    ),
    Plot(
        "bench-ends.svg",
        "From the last token to [DONE], and to the first token, p50, µs",
        (("end-of-stream gap", "ends 8", "gap_p50"), ("first token", "first 1", "first_p50")),
    ),
    Plot(
        "bench-transit.svg",
        "Transit of a token, engine to client, p50, µs",
        (("8 streams", "busy 8×1", "transit_p50"), ("64 streams", "busy 64×1", "transit_p50")),
    ),
)


def write_plots(results: Results, folder: Path, plots: Sequence[Plot] = PLOTS) -> None:
    """Write every chart for which something was measured."""
    hosts = results.hosts()
    for plot in plots:
        values = [[results.median(host, *bar[1:]) for bar in plot.bars] for host in hosts]
        if any(value is not None for row in values for value in row):
            labels = [bar[0] for bar in plot.bars]
            (folder / plot.file).write_text(bars(plot.title, hosts, labels, values))
