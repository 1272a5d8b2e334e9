"""Floor, relay, our router and its peers, measured in turns.

    python -m bench.pd [--rounds 5] [--routers relay ours …] [--streams 8 64] [--itl 0 5] [--check]

Every router runs in a process of its own for the whole run and is idle while others are measured;
all call the same mocked nodes. A round puts each load on each router before the next load comes, so
that whatever else the machine does hits all of them alike. Printed are medians over the rounds.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import uvloop
from rich.console import Console
from rich.progress import Progress

from bench.results import Results
from bench.session import about, add_output_options, once, show

from . import scenarios
from .report import METRICS, PLOTS
from .routers import ROUTERS, installed, start, start_nodes
from .targets import targets

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from .routers import RouterProcess

Figures = dict[str, float]
Load = tuple[str, "Callable[[RouterProcess], Awaitable[Figures]]"]

PACKAGES: Final = ("anyio", "h11", "orjson", "trio", "uvloop")
MAX_TOKENS: Final = 200
FEW: Final = 16
MANY: Final = 256
"""From so many streams on paced answers are half as long: the machine is full, and that is seen."""


def loads(options: argparse.Namespace) -> list[Load]:
    """The loads of one round, by name."""
    counts: Sequence[int] = options.streams
    pauses: Sequence[float] = options.itl
    made: list[Load] = [
        (
            f"{count} @ {itl:g} ms",
            partial(
                scenarios.streams,
                count,
                itl / 1000,
                MAX_TOKENS // 2 if itl and count >= MANY else MAX_TOKENS,
                _requests(count, itl),
            ),
        )
        for itl in pauses
        for count in counts
    ]
    if options.leaving:
        made += [
            (f"leaving @ {itl} ms", partial(scenarios.leaving, itl / 1000, options.leaving))
            for itl in (5, 400)
        ]
    return made


def _requests(count: int, itl: float) -> int:
    """Of each connection: few streams need several for as many answers as percentiles want.

    Without a pause between tokens, so many that opening connections, and the burst of all first
    requests, are a small part.
    """
    if itl:
        return 3 if count < FEW else 1
    return max(8, 384 // count)


def measure(options: argparse.Namespace, console: Console) -> Results:
    """Run everything."""
    results = Results(about(PACKAGES, rounds=options.rounds))
    python: str = options.peers_python
    names = [name for name in options.routers if installed(name, python)]
    for missing in set(options.routers) - set(names):
        console.print(f"{missing} is not installed for {python}: left out")
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, ExitStack() as stack:
        nodes = stack.enter_context(start_nodes(Path(folder) / "board"))
        routers = [stack.enter_context(start(name, nodes, python)) for name in names]
        for router in routers:
            uvloop.run(scenarios.warm_up(router))
        progress = stack.enter_context(Progress(console=console, transient=True))
        steps = [
            (number, load, router)
            for number in range(options.rounds)
            for load in loads(options)
            for router in routers
        ]
        for number, (scenario, load), router in progress.track(steps):
            results.add(number, router.name, scenario, uvloop.run(once(load, router)))
    return results


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.pd", description="Floor, relay, our router, its peers."
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--routers", nargs="+", choices=ROUTERS, default=ROUTERS)
    parser.add_argument("--streams", type=int, nargs="+", default=(1, 8, 64, 256))
    parser.add_argument("--itl", type=float, nargs="+", default=(0, 1, 5), help="milliseconds")
    parser.add_argument("--leaving", type=int, default=8, help="how many clients leave; 0: none")
    parser.add_argument(
        "--peers-python", default=sys.executable, help="of the environment with the Rust routers"
    )
    add_output_options(parser)
    return parser.parse_args(arguments)


def main() -> None:
    """Measure, or read what was measured; then show it."""
    options = parse()
    console = Console(width=None if sys.stdout.isatty() else 140)
    results = Results.load(options.read) if options.read else measure(options, console)
    show(results, options, console, metrics=METRICS, plots=PLOTS, targets=targets)


if __name__ == "__main__":
    main()
