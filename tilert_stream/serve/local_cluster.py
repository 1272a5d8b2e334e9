"""A whole cluster on this machine: one router, one prefill and some decode nodes, a process each.

    python -m tilert_stream.serve.local_cluster [--decode-nodes 2] [--transport auto] [--port 8000]

For trying disaggregation out, and for tests: every process is the one that runs alone in
production. Nodes take free ports; the router starts when they are ready, and prints its own lines.
Ctrl-C or SIGTERM ends all of them.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Final

import anyio
from anyio.streams.text import TextReceiveStream

from tilert_stream.errors import NotReady

from .front import choose

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from anyio.abc import Process

__all__ = ("main",)

SERVE: Final = (sys.executable, "-m", "tilert_stream.serve")
GRACE: Final = 10.0
"""Seconds that a process has to end when it is asked to; then it is killed."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until a signal, or until one of the processes ends; the exit code."""
    options = _parser().parse_args(arguments)
    return anyio.run(_run, options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tilert_stream.serve.local_cluster",
        description="A router, a prefill node and decode nodes on this machine.",
    )
    parser.add_argument("--model", default="auto", help="as of every role; auto is what is here")
    parser.add_argument("--engine", choices=("torch", "scripted"), default="torch")
    parser.add_argument("--transport", default="auto", help="what carries KV caches")
    parser.add_argument("--decode-nodes", type=int, default=2, help="how many")
    parser.add_argument("--slots", type=int, default=2, help="of each decode node")
    parser.add_argument("--threads", type=int, default=None, help="CPU threads of each engine")
    parser.add_argument("--port", type=int, default=8000, help="the router's")
    return parser


async def _run(options: argparse.Namespace) -> int:
    model = choose(options.model)
    engine = ["--engine", options.engine, "--model", model]
    engine += ["--transport", options.transport, "--no-access-log"]
    if options.threads is not None:
        engine += ["--threads", str(options.threads)]
    router_model = "bytes" if options.engine == "scripted" else model
    async with AsyncExitStack() as stack:
        node_lines: list[str] = []

        async def begin(role: str, *arguments: str) -> None:
            process = await _start(stack, role, *engine, *arguments)
            node_lines.append(await _announced(process, role))

        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_cancel_on_signal, signals, tasks.cancel_scope)
                async with anyio.create_task_group() as starting:
                    starting.start_soon(begin, "prefill", "--port", "0")
                    for _ in range(options.decode_nodes):
                        ports = ("--ctrl-port", "0", "--http-port", "0")
                        starting.start_soon(begin, "decode", *ports, "--slots", str(options.slots))
                given = [word for line in node_lines for word in line.split(": ", 1)[1].split()]
                router = await _start(
                    stack, "router", "--model", router_model, "--port", str(options.port), *given
                )
                if router.stdout is not None:
                    async for text in TextReceiveStream(router.stdout):
                        sys.stdout.write(text)
                        sys.stdout.flush()
                return await router.wait()
    return 0


async def _start(stack: AsyncExitStack, role: str, *arguments: str) -> Process:
    process = await anyio.open_process([*SERVE, role, *arguments], stderr=None)
    stack.push_async_callback(_end, process)
    return process


async def _announced(process: Process, role: str) -> str:
    """The line by which a node says that it is ready, and what routers are to be told."""
    if process.stdout is None:
        raise RuntimeError("the process was started without a pipe")
    text = ""
    async for part in TextReceiveStream(process.stdout):
        text += part
        *lines, _ = text.split("\n")
        for line in lines:
            if "for routers: " in line:
                return line
    raise NotReady(f"the {role} node has ended before it was ready; see what it printed above")


async def _end(process: Process) -> None:
    with anyio.CancelScope(shield=True):
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.terminate()
            with anyio.move_on_after(GRACE):
                await process.wait()
        await process.aclose()


async def _cancel_on_signal(
    signals: AsyncIterator[signal.Signals], scope: anyio.CancelScope
) -> None:
    async for _ in signals:
        scope.cancel()


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main())
