"""Floor, ours and peers, measured in turns.

    python -m bench [--rounds 5] [--hosts floor ours …] [--loads busy ends …] [--check]

Every server runs in a process of its own for the whole run and is idle while others are measured.
A round puts each load on each server before the next load comes, so that whatever else the machine
does hits all of them alike. Printed are medians over the rounds.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Final

import uvloop
from rich.console import Console
from rich.progress import Progress

from . import scenarios
from .hosts import FLOORS, HOSTS
from .plots import PLOTS
from .report import METRICS
from .results import Results
from .server import ServerProcess, start
from .session import about, add_output_options, once, show
from .targets import targets

Figures = dict[str, float]
Load = tuple[str, Callable[[ServerProcess], Awaitable[Figures]]]

LOADS: Final = ("busy", "ends", "first", "flood", "lag", "stalled", "idle")
PACKAGES: Final = ("anyio", "h11", "httptools", "hypercorn", "trio", "uvicorn", "uvloop")
IDLE_STREAMS: Final = 1000


def loads(options: argparse.Namespace) -> list[Load]:
    """The loads of one round, by name."""
    seconds: float = options.seconds
    busy: list[Load] = [
        (f"busy {streams}×{chain}", partial(scenarios.busy, streams, chain, seconds))
        for chain in (1, 4)
        for streams in options.streams
    ]
    of_kind: dict[str, list[Load]] = {
        "busy": busy,
        "ends": [("ends 8", partial(scenarios.ends, 8, 25))],
        "first": [("first 1", partial(scenarios.first_tokens, 60))],
        "flood": [("flood 8", partial(scenarios.flood, 8, seconds))],
        "lag": [("lag 64", partial(scenarios.loop_lag, 64, seconds))],
        "stalled": [
            ("calm 8", partial(scenarios.busy, 8, 1, seconds)),
            ("stalled 8", partial(scenarios.stalled_reader, 8, seconds)),
        ],
        "idle": [],
    }
    return [load for kind in options.loads for load in of_kind[kind]]


def measure(options: argparse.Namespace, console: Console) -> Results:
    """Run everything."""
    results = Results(
        about(PACKAGES, rounds=options.rounds, seconds=options.seconds, pinned=options.pin)
    )
    cpu = pin() if options.pin else None
    in_turns = loads(options)
    with Progress(console=console, transient=True) as progress, ExitStack() as stack:
        servers = [stack.enter_context(start(name, cpu=cpu)) for name in options.hosts]
        steps = [
            (number, scenario, load, server)
            for number in range(options.rounds)
            for scenario, load in in_turns
            for server in servers
        ]
        for number, scenario, load, server in progress.track(steps):
            if scenario != "stalled 8" or server.name not in FLOORS:
                results.add(number, server.name, scenario, uvloop.run(once(load, server)))
    if "idle" in options.loads:
        for host in options.hosts:
            with start(host, cpu=cpu) as server:
                figures = uvloop.run(scenarios.idle(IDLE_STREAMS, 2, server))
            results.add(0, host, f"idle {IDLE_STREAMS}", figures)
    return results


def pin() -> int | None:
    """Keep the load generator off one processor, which is for the servers; None: there is one."""
    servers, *rest = sorted(os.sched_getaffinity(0))
    if not rest:
        return None
    os.sched_setaffinity(0, rest)
    return servers


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="Floor, ours, peers.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--hosts", nargs="+", choices=tuple(HOSTS), default=tuple(HOSTS))
    parser.add_argument("--loads", nargs="+", choices=LOADS, default=LOADS)
    parser.add_argument("--streams", type=int, nargs="+", default=(1, 8, 64, 256))
    parser.add_argument("--seconds", type=float, default=0.6, help="of a steady load")
    parser.add_argument("--no-pin", dest="pin", action="store_false")
    add_output_options(parser)
    return parser.parse_args(arguments)


def main() -> None:
    """Measure, or read what was measured; then show it."""
    options = parse()
    console = Console(width=None if sys.stdout.isatty() else 120)
    results = Results.load(options.read) if options.read else measure(options, console)
    show(results, options, console, metrics=METRICS, plots=PLOTS, targets=targets)


if __name__ == "__main__":
    main()
