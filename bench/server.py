"""A host in its own process, as the load generator holds it: where it listens, what it has used."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .board import EMITTED, ENGINE_CPU, TURNS, Board

if TYPE_CHECKING:
    import signal
    from collections.abc import Generator

__all__ = ("ServerProcess", "Usage", "start")


@dataclass(frozen=True, slots=True)
class Usage:
    """What a server process has used since it began. Times are nanoseconds."""

    at: int
    cpu: int
    """All threads of the process, user and system."""
    engine_cpu: int
    """The scripted engine's thread, as of its last turn."""
    emitted: int
    turns: int

    def since(self, earlier: Usage) -> Usage:
        """What was used between the two."""
        return Usage(
            self.at - earlier.at,
            self.cpu - earlier.cpu,
            self.engine_cpu - earlier.engine_cpu,
            self.emitted - earlier.emitted,
            self.turns - earlier.turns,
        )

    @property
    def loop_cpu(self) -> int:
        """What everything but the engine has used."""
        return self.cpu - self.engine_cpu


class ServerProcess:
    """One running host."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], board: Board) -> None:
        self.name = name
        self.board = board
        self._process = process
        if process.stdout is None or process.stdin is None:
            raise ValueError("the server's standard input and output must be pipes")
        self._gate = process.stdin
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"{name} ended with {process.wait()} before it listened")
        self.port = int(line)

    def usage(self) -> Usage:
        """What it has used so far."""
        cells = self.board.cells
        # Linux's clock of another process's CPU time: man 3 clock_getcpuclockid.
        cpu = time.clock_gettime_ns(~self._process.pid << 3 | 2)
        return Usage(time.monotonic_ns(), cpu, cells[ENGINE_CPU], cells[EMITTED], cells[TURNS])

    def open_gate(self) -> None:
        """Let an engine that holds go on."""
        self._gate.write(b"\n")
        self._gate.flush()

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def wait(self) -> None:
        """Wait until it has ended by itself."""
        self._process.wait()

    def private_bytes(self) -> int:
        """Resident memory that it shares with nobody and no file."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return _field(status, "RssAnon:") * 1024

    def sleeps(self) -> int:
        """How often its threads have gone to sleep, and so been woken."""
        tasks = Path(f"/proc/{self._process.pid}/task").iterdir()
        statuses = [(task / "status").read_text() for task in tasks]
        return sum(_field(status, "voluntary_ctxt_switches:") for status in statuses)


def _field(status: str, name: str) -> int:
    line = next(line for line in status.splitlines() if line.startswith(name))
    return int(line.split()[1])


@contextmanager
def start(
    name: str, *, cpu: int | None = None, profile: Path | None = None
) -> Generator[ServerProcess]:
    """Run the host ``name`` until the block is left.

    :param cpu: the only processor that it may use; None: any.
    :param profile: where ``bench.profile`` has it write its profile.
    """
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        path = Path(directory) / "board"
        board = Board(path)
        board.pace(chain=1, seconds=0.001)
        command = [sys.executable, "-m", "bench.hosts", name, str(path)]
        if profile is not None:
            command.append(str(profile))
        root = Path(__file__).parents[1]
        process = subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            if cpu is not None:
                os.sched_setaffinity(process.pid, {cpu})
            yield ServerProcess(name, process, board)
        finally:
            process.kill()
            process.communicate()
