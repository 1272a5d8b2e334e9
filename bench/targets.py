"""What the server must reach, and whether a run shows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.table import Table

from .hosts import OURS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from .results import Results

__all__ = ("Target", "table", "targets")

FLOOR_OF = {"ours": "floor", "ours-uvloop": "floor-uvloop", "ours-trio": "floor"}
PEERS_OF = {
    "ours": ("uvicorn-h11", "uvicorn-httptools", "hypercorn"),
    "ours-uvloop": ("uvicorn-uvloop",),
}
"""Peers on the same event loop."""


@dataclass(frozen=True, slots=True)
class Target:
    """One promise: a figure of a run, and the most that it may be."""

    host: str
    what: str
    value: float | None
    limit: float

    @property
    def verdict(self) -> str:
        """Whether it holds; nothing was measured where a load was left out."""
        if self.value is None:
            return "not measured"
        return "holds" if self.value <= self.limit else "MISSED"


def targets(results: Results) -> Iterator[Target]:
    """Every promise, for each of our event loops. Comparisons are paired round by round."""
    for host in OURS:
        floor = FLOOR_OF[host]
        # Trio, slower by nature, is held to asyncio's figures; its loop has no bare floor.
        if host != "ours-trio":
            yield from _beside_floor(results, host, floor)
        more = results.excess(host, floor, "first 1", "first_p50")
        yield Target(host, f"time to first token, µs above {floor}", more, 1000)
        held = results.median(host, "idle 1000", "bytes")
        yield Target(host, "memory of an open idle stream, KB", held and held / 1000, 40)
        wakes = results.median(host, "idle 1000", "wakes")
        yield Target(host, "wake-ups a second with 1,000 idle streams", wakes, 1)
        crowd = results.ratio(host, host, "busy 256×1", "loop_us", to="busy 64×1")
        yield Target(host, "CPU a token at 256 streams, × 64 streams", crowd, 1.5)
        for name in ("loop_us", "transit_p50"):
            ratio = results.ratio(host, host, "stalled 8", name, to="calm 8")
            yield Target(host, f"{name} beside a stalled reader, × without", ratio, 1.2)
    ratio = results.ratio("ours-trio", "ours", "ends 8", "gap_p50")
    yield Target("ours-trio", "end-of-stream gap_p50, × asyncio", ratio, 1.5)


def _beside_floor(results: Results, host: str, floor: str) -> Iterator[Target]:
    for name, limit in (("gap_p50", 1.5), ("gap_p99", 3.0)):
        ratio = results.ratio(host, floor, "ends 8", name)
        yield Target(host, f"end-of-stream {name}, × {floor}", ratio, limit)
    for scenario, limit in (("busy 64×1", 30.0), ("busy 64×4", 8.0)):
        more = results.excess(host, floor, scenario, "loop_us")
        yield Target(host, f"{scenario}: µs CPU a token above {floor}", more, limit)
        for peer in PEERS_OF[host]:
            ratio = results.ratio(host, peer, scenario, "loop_us")
            yield Target(host, f"{scenario}: CPU a token, × {peer}", ratio, 1.0)


def table(promises: Iterable[Target]) -> Table:
    """The promises and what became of them."""
    made = Table(title="Targets", title_justify="left")
    made.add_column("host", no_wrap=True)
    made.add_column("what")
    for name in ("measured", "at most"):
        made.add_column(name, justify="right")
    made.add_column("")
    for target in promises:
        value = "" if target.value is None else f"{target.value:,.2f}"
        made.add_row(target.host, target.what, value, f"{target.limit:,g}", target.verdict)
    return made
