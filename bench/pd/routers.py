"""Every router that is measured, by name; each runs in a process of its own.

In: the mocked nodes' ports. Out: where a router listens, and what CPU time it has used. ``floor``
is none: the client calls the mock itself.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.board import Board

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

__all__ = ("OURS", "ROUTERS", "RUST", "Nodes", "RouterProcess", "installed", "start", "start_nodes")

OURS: Final = ("ours", "ours-uvloop", "ours-trio")
RUST: Final = ("sglang-pd", "vllm-pd")
ROUTERS: Final = ("floor", "relay", *OURS, *RUST)
MODULES: Final = {
    "sglang-pd": "sglang_router.launch_router",
    "vllm-pd": "vllm_router.launch_router",
}
BACKENDS: Final = {
    "ours": ("--backend", "asyncio", "--no-uvloop"),
    "ours-uvloop": ("--backend", "asyncio"),
    "ours-trio": ("--backend", "trio"),
}
ROOT: Final = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Nodes:
    """The mocks' ports."""

    board: Board
    prefill: int
    decode: int
    whole: int

    def url(self, port: int) -> str:
        """The address of one."""
        return f"http://127.0.0.1:{port}"


class RouterProcess:
    """One running router."""

    def __init__(self, name: str, nodes: Nodes, port: int, pid: int | None) -> None:
        self.name = name
        self.nodes = nodes
        self.board = nodes.board
        self.port = port
        self._pid = pid

    def cpu(self) -> int:
        """Nanoseconds that all its threads have used, user and system; 0 where there is none."""
        # Linux's clock of another process's CPU time: man 3 clock_getcpuclockid.
        return 0 if self._pid is None else time.clock_gettime_ns(~self._pid << 3 | 2)


def free_port() -> int:
    """A port on which nobody listens now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def installed(name: str, python: str) -> bool:
    """Whether ``name`` can be run; the peers may be in an environment of their own."""
    module = MODULES.get(name)
    if module is None:
        return True
    done = subprocess.run([python, "-c", f"import {module}"], capture_output=True, check=False)
    return not done.returncode


@contextmanager
def start_nodes(path: Path) -> Generator[Nodes]:
    """Run the mocks until the block is left."""
    command = (sys.executable, "-m", "bench.pd.nodes", str(path))
    with _running(command) as process:
        yield Nodes(Board(path), *map(int, _line(process).split()))


@contextmanager
def start(name: str, nodes: Nodes, python: str) -> Generator[RouterProcess]:
    """Run the router ``name`` until the block is left; it may still be looking for its nodes.

    :param python: of the environment that has the peers.
    """
    if name == "floor":
        yield RouterProcess(name, nodes, nodes.whole, None)
        return
    if name == "relay":
        command = (sys.executable, "-m", "bench.pd.relay", str(nodes.prefill), str(nodes.decode))
        with _running(command) as process:
            yield RouterProcess(name, nodes, int(_line(process)), process.pid)
        return
    port = free_port()
    make = _ours if name in OURS else _rust
    # What it logs is read by nobody: a pipe would fill, and stop it.
    with _running(make(name, nodes, port, python), subprocess.DEVNULL) as process:
        _wait(name, process, port)
        yield RouterProcess(name, nodes, port, process.pid)


def _ours(name: str, nodes: Nodes, port: int, _python: str) -> Sequence[str]:
    return (
        *(sys.executable, "-m", "tilert_stream.serve", "router", *BACKENDS[name]),
        *("--model", "bytes", "--served-model-name", "echo", "--port", str(port)),
        *("--prefill", nodes.url(nodes.prefill), "--decode", f"127.0.0.1:1:{nodes.decode}"),
        *("--no-access-log", "--log-level", "warning"),
    )


def _rust(name: str, nodes: Nodes, port: int, python: str) -> Sequence[str]:
    common = (
        *("--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(free_port())),
        *("--policy", "round_robin", "--log-level"),
    )
    if name == "vllm-pd":
        mode, decode = ("warning", "--vllm-pd-disaggregation"), nodes.decode
    else:
        # It asks both at once; its decode node waits for prefill by itself.
        mode, decode = ("warn", "--pd-disaggregation"), nodes.whole
    return (
        *(python, "-m", MODULES[name], *common, *mode),
        *("--prefill", nodes.url(nodes.prefill), "--decode", nodes.url(decode)),
    )


@contextmanager
def _running(
    command: Sequence[str], stdout: int = subprocess.PIPE
) -> Generator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=stdout)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _line(process: subprocess.Popen[bytes]) -> bytes:
    if process.stdout is None:
        raise ValueError("the process's standard output must be a pipe")
    line: bytes = process.stdout.readline()
    if not line:
        raise RuntimeError(f"{process.args!r} ended with {process.wait()} before it listened")
    return line


def _wait(name: str, process: subprocess.Popen[bytes], port: int) -> None:
    """Until somebody listens on ``port``, which no event tells."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if process.poll() is not None:
            raise RuntimeError(f"{name} ended with {process.returncode} before it listened")
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise RuntimeError(f"{name} does not listen on port {port} after 60 s")
