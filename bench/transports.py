"""KV hand-off: each transport beside a bare loop over the same segments, and a whole hand-over.

    python -m bench.transports [--rounds 9] [--kinds shm tcp nixl …] [--json FILE] [--check]

A model of 79 layers with 3 planes each, 64 and 512 MB in all; the writer keeps plane after plane,
the reader layer after layer, so that no two of the 237 segments merge. Each round runs the bare
loop and the transport one after the other. Then one write of 1 MB, from the call to its return in
the event loop; and a hand-over of 1 MB, from prefill's claim to the moment that the decode node
reports the region ready. Printed are medians over the rounds.
"""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio
from rich.console import Console
from rich.progress import Progress

from tilert_transports.nixl_binding import installed
from tilert_transports.plan import Plan
from tilert_transports.registry import make

from .bare_loops import BARE
from .hand_over import hand_overs
from .report import Metric
from .results import Results
from .session import about, add_output_options, show
from .targets import Target

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tilert_transports.abc import Peer, Region, Transport

__all__ = ("measure", "targets")

LAYERS, PLANES = 79, 3
MB: Final = 1 << 20
SIZES: Final = (64, 512)
PACKAGES: Final = ("anyio", "numpy")
METRICS: Final = (
    Metric("gbps", "Written, GB/s", 2),
    Metric("bare_gbps", "By the bare loop, GB/s", 2),
    Metric("times_bare", "Time of a write, × the bare loop's of the same round", 2),
    Metric("write_p50", "A write of 1 MB, p50 (µs)", 0),
    Metric("write_p99", "A write of 1 MB, p99 (µs)", 0),
    Metric("ready_p50", "A hand-over of 1 MB, claim to ready, p50 (µs)", 0),
    Metric("ready_p99", "A hand-over of 1 MB, claim to ready, p99 (µs)", 0),
)
SLOWER: Final = {"shm": 1 / 0.9, "tcp": 1 / 0.9, "nixl": 1 / 0.95}
"""Than the bare loop, at most; by transport."""
READY: Final = {"shm": 1000.0, "tcp": 2000.0}
"""Microseconds, at most; by transport."""
HAND_OVER: Final = "1 MB"


def plan_of(nbytes: int) -> Plan:
    size = nbytes // (LAYERS * PLANES)
    return Plan(
        ((plane * LAYERS + layer) * size, (layer * PLANES + plane) * size, size)
        for layer in range(LAYERS)
        for plane in range(PLANES)
    )


class Connected:
    """A writer and a reader of one kind in this process."""

    def __init__(
        self, writer: Transport, reader: Transport, peer: Peer, source: Region, target: Region
    ) -> None:
        self.writer, self.reader, self.peer = writer, reader, peer
        self.source, self.target = source, target

    @classmethod
    async def make(cls, kind: str, nbytes: int) -> Connected:
        writer, reader = make(kind), make(kind)
        source, target = await writer.allocate(nbytes), await reader.allocate(nbytes)
        peer = await writer.connect(reader.card(), timeout=30)
        return cls(writer, reader, peer, source, target)

    async def write(self, plan: Plan) -> None:
        deadline = anyio.current_time() + 60
        await self.writer.write(self.peer, self.source, self.target, plan, deadline=deadline)

    async def close(self) -> None:
        await self.writer.aclose()
        await self.reader.aclose()


async def throughput(kind: str, megabytes: int, rounds: int, results: Results) -> None:
    with ExitStack() as stack:
        plan = plan_of(megabytes * MB)
        bare = BARE[kind](megabytes * MB, plan.segments, stack)
        ours = await Connected.make(kind, megabytes * MB)
        bare()
        await ours.write(plan)
        for number in range(rounds):
            took: dict[str, float] = {}
            for candidate in ("bare", "ours") if number % 2 else ("ours", "bare"):
                begin = time.perf_counter()
                if candidate == "bare":
                    bare()
                else:
                    await ours.write(plan)
                took[candidate] = time.perf_counter() - begin
            figures = {
                "gbps": plan.nbytes / took["ours"] / 1e9,
                "bare_gbps": plan.nbytes / took["bare"] / 1e9,
                "times_bare": took["ours"] / took["bare"],
            }
            results.add(number, kind, f"{megabytes} MB", figures)
        await ours.close()


async def latency(kind: str, writes: int, rounds: int, results: Results) -> None:
    ours = await Connected.make(kind, MB)
    plan = plan_of(MB)
    await ours.write(plan)
    for number in range(rounds):
        times: list[float] = []
        for _ in range(writes):
            begin = time.perf_counter()
            await ours.write(plan)
            times.append((time.perf_counter() - begin) * 1e6)
        results.add(number, kind, HAND_OVER, percentiles("write", times))
    await ours.close()


async def readiness(kind: str, writes: int, rounds: int, results: Results) -> None:
    for number in range(rounds):
        times = await hand_overs(kind, writes)
        results.add(number, kind, HAND_OVER, percentiles("ready", times))


def percentiles(name: str, times: list[float]) -> dict[str, float]:
    ordered = sorted(times)
    return {
        f"{name}_{label}": ordered[int(len(ordered) * share)]
        for label, share in (("p50", 0.5), ("p99", 0.99))
    }


def targets(results: Results) -> Iterator[Target]:
    """Every promise of a transport."""
    for kind, limit in SLOWER.items():
        for megabytes in SIZES:
            times = results.median(kind, f"{megabytes} MB", "times_bare")
            yield Target(kind, f"{megabytes} MB: time, × the bare loop", times, limit)
    for kind, limit in READY.items():
        ready = results.median(kind, HAND_OVER, "ready_p50")
        yield Target(kind, "hand-over of 1 MB, claim to ready, p50, µs", ready, limit)


def measure(options: argparse.Namespace, console: Console) -> Results:
    """Run everything."""
    results = Results(about(PACKAGES, rounds=options.rounds))
    rounds: int = options.rounds
    with Progress(console=console, transient=True) as progress:
        steps = [
            *(
                partial(throughput, kind, size, rounds, results)
                for size in options.sizes
                for kind in options.kinds
            ),
            *(
                partial(load, kind, options.writes, rounds, results)
                for load in (latency, readiness)
                for kind in options.kinds
            ),
        ]
        for step in progress.track(steps):
            anyio.run(step)
    return results


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    kinds = [kind for kind in BARE if kind != "nixl" or installed()]
    parser = argparse.ArgumentParser(
        prog="python -m bench.transports", description="KV hand-off beside a bare loop."
    )
    parser.add_argument("--kinds", nargs="+", choices=list(BARE), default=kinds)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES, help="megabytes")
    parser.add_argument("--writes", type=int, default=100, help="of 1 MB, in each round")
    add_output_options(parser)
    return parser.parse_args(arguments)


def main() -> None:
    """Measure, or read what was measured; then show it."""
    options = parse()
    console = Console(width=None if sys.stdout.isatty() else 140)
    results = Results.load(options.read) if options.read else measure(options, console)
    show(results, options, console, metrics=METRICS, plots=(), targets=targets)


if __name__ == "__main__":
    main()
