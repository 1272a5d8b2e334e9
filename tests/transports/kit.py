"""What the tests of all transports share: a connected pair, patterns, checksums, a peer process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import zlib
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import IO, Final

import anyio
import pytest

from tilert_transports.abc import Peer, Receipt, Region, Transport
from tilert_transports.auto import AutoTransport
from tilert_transports.memory import MemoryTransport
from tilert_transports.mooncake import MooncakeTransport
from tilert_transports.nixl import NixlTransport
from tilert_transports.nixl_binding import installed
from tilert_transports.plan import Plan
from tilert_transports.shm import ShmTransport
from tilert_transports.tcp import TcpTransport


def _makers() -> dict[str, Callable[[], Transport]]:
    if os.environ.get("TILERT_TEST_MOONCAKE"):
        # Alone: with the system's libibverbs in the process, NIXL crashes at its end.
        return {"mooncake": MooncakeTransport}
    makers: dict[str, Callable[[], Transport]] = {
        "auto": lambda: AutoTransport([ShmTransport(), TcpTransport()]),
        "memory": MemoryTransport,
        "shm": ShmTransport,
        "tcp": TcpTransport,
    }
    if installed():
        makers["nixl"] = NixlTransport
    return makers


MAKERS: Final = _makers()
KINDS: Final = sorted(MAKERS)
PROCESS_KINDS: Final = sorted(MAKERS.keys() - {"auto", "memory"})

BACKENDS: Final = [
    pytest.param(("asyncio", {"use_uvloop": False}), id="asyncio"),
    pytest.param(("trio", dict[str, object]()), id="trio"),
]
"""uvloop has one test of its own: its part in a transport is asyncio's, and processes are slow."""

every_kind = pytest.mark.parametrize(
    ("kind", "anyio_backend"),
    [
        pytest.param(kind, *backend.values, id=f"{kind}-{backend.id}")
        for kind in KINDS
        for backend in BACKENDS
        if kind != "auto" or backend.id == "trio"  # it only passes calls on
    ],
)

MIB: Final = 1 << 20
SOON: Final = 60.0
"""Seconds after which a test that hangs fails; nothing waits for it otherwise."""

NOISE: Final = Random(7).randbytes(MIB)


def make(kind: str) -> Transport:
    return MAKERS[kind]()


def fill(view: memoryview, seed: int) -> None:
    """Bytes that depend on their place, and on ``seed``."""
    turn = seed * 7919 % MIB
    noise = NOISE[turn:] + NOISE[:turn]
    for begin in range(0, len(view), MIB):
        piece = view[begin : begin + MIB]
        piece[:] = noise[: len(piece)]
        piece[0] = (begin // MIB + seed) % 256


def crc(view: memoryview) -> int:
    return zlib.crc32(view)


def scattered(nbytes: int, count: int) -> Plan:
    """``count`` rows that cover ``nbytes`` of the source and cannot merge."""
    size = nbytes // count
    rows = [(index * size, (count - 1 - index) * size, size) for index in range(count)]
    return Plan(rows)


def soon() -> float:
    return anyio.current_time() + SOON


@dataclass
class Pair:
    """A writer that is connected to a reader of the same kind."""

    writer: Transport
    reader: Transport
    peer: Peer
    source: Region
    target: Region

    @property
    def sent(self) -> memoryview:
        return self.writer.view(self.source)

    @property
    def landed(self) -> memoryview:
        return self.reader.view(self.target)

    async def write(self, plan: Plan) -> Receipt:
        return await self.writer.write(self.peer, self.source, self.target, plan, deadline=soon())


@asynccontextmanager
async def connected(kind: str, nbytes: int) -> AsyncGenerator[Pair]:
    """A pair with one region of ``nbytes`` each, the source filled, the target zero."""
    writer, reader = make(kind), make(kind)
    try:
        source = await writer.allocate(nbytes)
        target = await reader.allocate(nbytes)
        fill(writer.view(source), 1)
        peer = await writer.connect(reader.card(), timeout=SOON)
        yield Pair(writer, reader, peer, source, target)
    finally:
        with anyio.CancelScope(shield=True):
            await writer.aclose()
            await reader.aclose()


class PeerProcess:
    """A reader in a process of its own, which answers questions about its region 0."""

    def __init__(self, kind: str, nbytes: int, *options: str) -> None:
        script = Path(__file__).with_name("peer_process.py")
        self._process = subprocess.Popen(
            [sys.executable, str(script), kind, str(nbytes), *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.card = bytes.fromhex(self._line())

    def _line(self) -> str:
        line = pipe(self._process.stdout).readline()
        assert line, "the peer process ended"
        return str(json.loads(line))

    def crc(self, nbytes: int = -1) -> int:
        """Of its region's first ``nbytes``, or of all."""
        stdin = pipe(self._process.stdin)
        stdin.write(f"{nbytes}\n")
        stdin.flush()
        return int(self._line())

    def stop(self) -> None:
        """Hang it. Returns once it has stopped."""
        self._process.send_signal(signal.SIGSTOP)
        os.waitpid(self._process.pid, os.WUNTRACED)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        self.kill()
        pipe(self._process.stdin).close()
        pipe(self._process.stdout).close()


def pipe(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


@contextmanager
def peer_process(kind: str, nbytes: int, *options: str) -> Generator[PeerProcess]:
    peer = PeerProcess(kind, nbytes, *options)
    try:
        yield peer
    finally:
        peer.close()
