"""Router, prefill node and client, a process each, around a decode node in this one.

In: a decode engine that notes its moments. Out: what a request met on its whole way.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Final, NamedTuple, cast

import anyio
import anyio.lowlevel
import anyio.to_thread

from tilert_stream.config import DecodeConfig
from tilert_stream.http import Server, ServerSettings
from tilert_stream.serve.collection import collect_between_requests
from tilert_stream.serve.decode import build_decode
from tilert_transports.registry import load

from .synthetic import ServedDecode, TimedDecode

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from tilert_engine.glm import GLMCheckpoint

__all__ = ("Answer", "Cluster", "running")

NODE: Final = (sys.executable, "-m", "bench.gpu.prefill_node")
ROUTER: Final = (sys.executable, "-m", "tilert_stream.serve", "router", "--model", "tiny-glm5")
CLIENT: Final = (sys.executable, "-m", "bench.gpu.asking")


class Answer(NamedTuple):
    """A request, by moments in nanoseconds of ``CLOCK_MONOTONIC``."""

    asked: int
    computed: tuple[int, int]
    """When prefill's engine began, and when it had ended."""
    first: int
    """The first token is at the client."""
    done: int
    """``[DONE]`` is."""
    moments: list[int]
    """When the engine's harvests had been read."""
    steps: list[int]
    """Forwards by then."""
    overrun: int


@dataclass
class Cluster:
    """A cluster that runs."""

    client: subprocess.Popen[str]
    prefill: subprocess.Popen[str]
    engine: TimedDecode
    router_port: int
    prefill_port: int

    async def ask(self, prompt: int, tokens: int) -> Answer:
        """One request, when nothing else runs."""
        self.engine.ended = None
        got = await self._asked(self.router_port, prompt, tokens)
        computed = await self._computed()
        while self.engine.ended is None:  # closed a moment after the last token has left
            await anyio.lowlevel.checkpoint()
        return Answer(
            got["asked"],
            computed,
            got["first"],
            got["done"],
            self.engine.moments,
            self.engine.steps,
            self.engine.ended.ledger.overrun,
        )

    async def ask_prefill(self, prompt: int) -> float:
        """The prompt to the prefill node itself: the milliseconds of its answer."""
        got = await self._asked(self.prefill_port, prompt, 1)
        await self._computed()
        return (got["first"] - got["asked"]) / 1e6

    async def _asked(self, port: int, prompt: int, tokens: int) -> dict[str, int]:
        written, read = _pipes(self.client)
        written.write(f"{port} {prompt} {tokens}\n")
        written.flush()
        line = await anyio.to_thread.run_sync(read.readline)
        got = json.loads(line or '{"tokens": 0, "failed": "the client has ended"}')
        if got.pop("failed") or got["tokens"] != tokens:
            raise RuntimeError(f"{got['tokens']} of {tokens} tokens came: {line}")
        return cast("dict[str, int]", got)

    async def _computed(self) -> tuple[int, int]:
        _, begun, ended = (await _line(self.prefill, "computed ")).split()
        return int(begun), int(ended)


@asynccontextmanager
async def running(
    checkpoint: GLMCheckpoint, engine: TimedDecode, prefill_seconds: float
) -> AsyncGenerator[Cluster]:
    """A cluster around ``engine``."""
    load("shm")
    model = ServedDecode(checkpoint, engine)
    config = DecodeConfig(http_port=0, ctrl_port=0, slots=engine.slots, transport="shm")
    app, port = build_decode(config, model)
    server = Server(app, ServerSettings(port=0, access_log=False))
    layers, longest = str(checkpoint.config.num_hidden_layers), str(engine.max_seq_len)
    processes: list[subprocess.Popen[str]] = []
    try:
        async with anyio.create_task_group() as tasks:
            addresses: list[tuple[str, int | None]] = await tasks.start(server.serve)
            prefill = _start(processes, *NODE, layers, longest, str(prefill_seconds))
            url = (await _line(prefill, "for routers: ")).split("--prefill ")[1].strip()
            decode = f"127.0.0.1:{port.port}:{addresses[0][1]}"
            nodes = ("--prefill", url, "--decode", decode, "--max-seq-len", longest)
            router = _start(processes, *ROUTER, *nodes, "--port", "0", "--no-access-log")
            address = (await _line(router, "http://")).split("http://")[1]
            number = address.split(":")[1].split("/")[0].split()[0]
            client = _start(processes, *CLIENT)
            # As the roles do once they listen: looking through a whole engine takes 100 ms.
            collect_between_requests(app.service.observers)
            yield Cluster(client, prefill, engine, int(number), int(url.rsplit(":", 1)[1]))
            gc.unfreeze()
            server.drain()
            tasks.cancel_scope.cancel()
    finally:
        for process in processes:
            process.terminate()
            process.communicate()


def _start(processes: list[subprocess.Popen[str]], *command: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    processes.append(process)
    return process


async def _line(process: subprocess.Popen[str], wanted: str) -> str:
    _, read = _pipes(process)
    while line := await anyio.to_thread.run_sync(read.readline):
        if wanted in line:
            return line
    raise RuntimeError(f"{process.args!r} has ended without a line with {wanted!r}")


def _pipes(process: subprocess.Popen[str]) -> tuple[IO[str], IO[str]]:
    if process.stdin is None or process.stdout is None:
        raise RuntimeError("the process was started without pipes")
    return process.stdin, process.stdout
