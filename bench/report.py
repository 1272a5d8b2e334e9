"""The tables that a run ends with: one a figure, a row a host, a column a load."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rich.box import SIMPLE_HEAD
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .results import Results

__all__ = ("METRICS", "Metric", "tables")


@dataclass(frozen=True, slots=True)
class Metric:
    """How a figure is shown."""

    name: str
    title: str
    digits: int = 1
    scale: float = 1


METRICS: Final = (
    Metric("loop_us", "CPU time a token, the engine's thread left out (µs)"),
    Metric("engine_us", "CPU time a token of the scripted engine's thread (µs)"),
    Metric("transit_p50", "Transit of a token, engine to client, p50 (µs)", 0),
    Metric("transit_p99", "Transit of a token, engine to client, p99 (µs)", 0),
    Metric("gap_p50", "End-of-stream gap, p50 (µs)", 0),
    Metric("gap_p99", "End-of-stream gap, p99 (µs)", 0),
    Metric("first_p50", "Added time to first token, p50 (µs)", 0),
    Metric("first_p99", "Added time to first token, p99 (µs)", 0),
    Metric("tokens_per_second", "Tokens a second", 0),
    Metric("tokens_per_chunk", "Tokens a chunk", 2),
    Metric("lag_p50", "GET /health beside busy streams, p50 (µs)", 0),
    Metric("lag_p99", "GET /health beside busy streams, p99 (µs)", 0),
    Metric("bytes", "Memory of an open idle stream (KB)", 1, 1 / 1000),
    Metric("wakes", "Wake-ups a second with idle streams open", 1),
)


def tables(results: Results, metrics: Sequence[Metric] = METRICS) -> Iterator[Table]:
    """A table for each figure that was measured; medians over the rounds."""
    for metric in metrics:
        scenarios = results.scenarios(metric.name)
        if not scenarios:
            continue
        table = Table(title=metric.title, title_justify="left", box=SIMPLE_HEAD)
        table.add_column("host", no_wrap=True)
        for scenario in scenarios:
            table.add_column(scenario, justify="right", no_wrap=True)
        for host in results.hosts():
            medians = [results.median(host, scenario, metric.name) for scenario in scenarios]
            if any(value is not None for value in medians):
                table.add_row(host, *(_shown(value, metric) for value in medians))
        yield table


def _shown(value: float | None, metric: Metric) -> str:
    return "" if value is None else f"{value * metric.scale:,.{metric.digits}f}"
