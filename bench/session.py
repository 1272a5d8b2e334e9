"""What every benchmark does around its measuring: options in, figures shown, saved and drawn."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from .plots import write_plots
from .report import tables
from .targets import table

if TYPE_CHECKING:
    import argparse
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from rich.console import Console

    from .plots import Plot
    from .report import Metric
    from .results import Results
    from .targets import Target

__all__ = ("about", "add_output_options", "once", "show")

Server = TypeVar("Server")
Figures = dict[str, float]


def about(packages: Iterable[str], **conditions: object) -> dict[str, str]:
    """Under which conditions the figures came to be."""
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        **{name: str(value) for name, value in conditions.items()},
        **{name: version(name) for name in packages},
    }


def add_output_options(parser: argparse.ArgumentParser) -> None:
    """What becomes of the figures."""
    parser.add_argument("--json", type=Path, help="where the figures go")
    parser.add_argument("--svg", type=Path, help="a folder for charts")
    parser.add_argument("--check", action="store_true", help="say which targets hold")
    parser.add_argument("--read", type=Path, help="show these figures in place of measuring")


async def once(load: Callable[[Server], Awaitable[Figures]], server: Server) -> Figures:
    """A load as a coroutine, which is what an event loop is run with."""
    return await load(server)


def show(
    results: Results,
    options: argparse.Namespace,
    console: Console,
    *,
    metrics: Sequence[Metric],
    plots: Sequence[Plot],
    targets: Callable[[Results], Iterable[Target]],
) -> None:
    """Save, print and draw, as the options say. What is missed is told, no error."""
    if options.json:
        results.save(options.json)
    for made in tables(results, metrics):
        console.print(made)
    if options.svg:
        write_plots(results, options.svg, plots)
    if options.check:
        console.print(table(targets(results)))
