"""What is left per token, function by function: cProfile on the event loop's thread.

    python -m bench.profile [HOST] [--streams 64] [--chain 1] [--seconds 3] [--lines 30]

Printed are microseconds a token, own and with everything called, and calls a token. The profiler
makes each Python call about 1 µs dearer: compare lines with each other, not with the table of
``python -m bench``. Waiting in ``poll`` is wall time, not CPU time.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import marshal
import os
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

from . import scenarios
from .hosts import HOSTS
from .server import start

if TYPE_CHECKING:
    from types import FrameType

    from .server import ServerProcess, Usage

__all__ = ("profile_on_signal",)

Place = tuple[str, int, str]
"""File, line, function."""
Spent = tuple[int, int, float, float, object]
"""Calls without recursion, calls, seconds of its own, seconds with what it calls, callers."""
BEGIN, END = signal.SIGUSR1, signal.SIGUSR2


def profile_on_signal(path: Path) -> None:
    """Let this process profile its main thread between two signals, write ``path``, and end."""
    profiler = cProfile.Profile()

    def begin(_number: int, _frame: FrameType | None) -> None:
        profiler.enable()

    def end(_number: int, _frame: FrameType | None) -> None:
        profiler.disable()
        profiler.dump_stats(path)
        os._exit(0)

    signal.signal(BEGIN, begin)
    signal.signal(END, end)


async def _measure(server: ServerProcess, streams: int, chain: int, seconds: float) -> Usage:
    async with scenarios.running(server, streams, chain=chain) as clients:
        server.signal(BEGIN)
        before = server.usage()
        await asyncio.sleep(seconds)
        used = server.usage().since(before)
        server.signal(END)
        await asyncio.gather(*(client.over for client in clients), return_exceptions=True)
    return used


def main() -> None:
    """Profile one host, and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.profile")
    parser.add_argument("host", nargs="?", choices=tuple(HOSTS), default="ours")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--chain", type=int, default=1, help="tokens a wake")
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--lines", type=int, default=30)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "profile"
        with start(options.host, profile=path) as server:
            used = uvloop.run(_measure(server, options.streams, options.chain, options.seconds))
            server.wait()
        stats: dict[Place, Spent] = marshal.loads(path.read_bytes())
    print(f"{'own µs':>8}{'all µs':>8}{'calls':>7}   a token, {options.host}")
    for place, spent in sorted(stats.items(), key=lambda item: -item[1][2])[: options.lines]:
        print(_line(place, spent, used.emitted))


def _line(place: Place, spent: Spent, tokens: int) -> str:
    (file, number, function), (_, calls, own, everything, _) = place, spent
    figures = f"{own / tokens * 1e6:8.2f}{everything / tokens * 1e6:8.2f}{calls / tokens:7.2f}"
    return f"{figures}   {'/'.join(Path(file).parts[-2:])}:{number} {function}"


if __name__ == "__main__":
    main()
