"""KV hand-off, GB/s: each transport beside a bare loop over the same segments.

    python bench/transports.py [--rounds 9] [shm tcp nixl ...]

A model of 79 layers with 3 planes each, 64 and 512 MB in all; the writer keeps plane after plane,
the reader layer after layer, so that no two of the 237 segments merge. Each round runs the bare
loop and the transport one after the other; printed are the medians, and the median of the ratios
inside a round, and the ratio of both sides' best rounds: on a busy machine waking a thread costs
more than it does on one that has a core to spare. At the end: one write of 1 MB, microseconds from
the call to its return in the event loop.

The bare loops: shm, a slice assignment a segment between two memfd mappings; tcp, a thread that
sends and one that receives into place, one call a segment; nixl, one transfer of the native API,
polled without pause.
"""

from __future__ import annotations

import argparse
import socket
import threading
import time
from collections.abc import Callable
from statistics import median
from typing import TYPE_CHECKING

import anyio
import numpy as np

from tilert_transports.host_memory import HostMemory, prefault
from tilert_transports.nixl_binding import installed, load, make_agent
from tilert_transports.nixl_memory import Location
from tilert_transports.plan import Plan, Row
from tilert_transports.registry import make
from tilert_transports.shm_memory import SharedMemory

if TYPE_CHECKING:
    from tilert_transports.abc import Peer, Region, Transport

LAYERS, PLANES = 79, 3
MB = 1 << 20
SIZES = (64 * MB, 512 * MB)
LATENCY_WRITES = 300

Bare = Callable[[], None]


def plan_of(nbytes: int) -> Plan:
    size = nbytes // (LAYERS * PLANES)
    return Plan(
        ((plane * LAYERS + layer) * size, (layer * PLANES + plane) * size, size)
        for layer in range(LAYERS)
        for plane in range(PLANES)
    )


def prepared(memory: HostMemory) -> HostMemory:
    prefault(memory)
    return memory


def bare_copy(nbytes: int, segments: tuple[Row, ...], kind: Callable[[int], HostMemory]) -> Bare:
    source, target = prepared(kind(nbytes)), prepared(kind(nbytes))

    def run() -> None:
        for from_, to, size in segments:
            target.view[to : to + size] = source.view[from_ : from_ + size]

    return run


def bare_shm(nbytes: int, segments: tuple[Row, ...]) -> Bare:
    return bare_copy(nbytes, segments, SharedMemory)


def bare_memory(nbytes: int, segments: tuple[Row, ...]) -> Bare:
    return bare_copy(nbytes, segments, HostMemory.anonymous)


def bare_tcp(nbytes: int, segments: tuple[Row, ...]) -> Bare:
    source = prepared(HostMemory.anonymous(nbytes)).view
    target = prepared(HostMemory.anonymous(nbytes)).view
    server = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(server.getsockname())
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    accepted, _ = server.accept()

    def receive() -> None:
        while True:
            for _, to, size in segments:
                view = target[to : to + size]
                while view:
                    taken = accepted.recv_into(view)
                    if not taken:
                        return
                    view = view[taken:]
            accepted.sendall(b"!")

    threading.Thread(target=receive, daemon=True).start()

    def run() -> None:
        for from_, _, size in segments:
            client.sendall(source[from_ : from_ + size])
        client.recv(1)

    return run


def bare_nixl(nbytes: int, segments: tuple[Row, ...]) -> Bare:
    binding = load()
    writer, reader = make_agent(binding, "bench-writer"), make_agent(binding, "bench-reader")
    memories = [prepared(HostMemory.anonymous(nbytes)) for _ in range(2)]
    source, target = (Location.of(memory) for memory in memories)
    writer.registerMem(source.registration(binding), [])
    reader.registerMem(target.registration(binding), [])
    writer.loadRemoteMD(reader.getLocalMD())
    rows = np.array(segments, dtype=np.uint64)

    def run() -> None:
        handle = writer.createXferReq(
            binding.NIXL_WRITE,
            source.descriptors(binding, rows[:, 0], rows[:, 2]),
            target.descriptors(binding, rows[:, 1], rows[:, 2]),
            "bench-reader",
        )
        status = writer.postXferReq(handle)
        while status == binding.NIXL_IN_PROG:
            status = writer.getXferStatus(handle)
        writer.releaseXferReq(handle)
        assert memories, "kept for as long as the agents"
        assert reader is not None

    return run


BARE = {"memory": bare_memory, "shm": bare_shm, "tcp": bare_tcp, "nixl": bare_nixl}


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


async def throughput(kind: str, nbytes: int, rounds: int) -> None:
    plan = plan_of(nbytes)
    bare = BARE[kind](nbytes, plan.segments)
    ours = await Connected.make(kind, nbytes)
    times: list[tuple[float, float]] = []
    bare()
    await ours.write(plan)
    for number in range(rounds):
        pair: dict[str, float] = {}
        for candidate in ("bare", "ours") if number % 2 else ("ours", "bare"):
            begin = time.perf_counter()
            if candidate == "bare":
                bare()
            else:
                await ours.write(plan)
            pair[candidate] = time.perf_counter() - begin
        times.append((pair["bare"], pair["ours"]))
    await ours.close()
    columns = list(zip(*times, strict=True))
    loop, transport = (plan.nbytes / median(column) / 1e9 for column in columns)
    ratio = median(theirs / mine for theirs, mine in times)
    best = min(columns[0]) / min(columns[1])
    print(
        f"  {kind:<8}{nbytes // MB:>5} MB {loop:>8.2f} GB/s bare {transport:>8.2f} GB/s"
        f" {ratio:>7.2f} ×  best rounds {best:>5.2f} ×"
    )


async def latency(kind: str) -> None:
    ours = await Connected.make(kind, MB)
    plan = plan_of(MB)
    times: list[float] = []
    for number in range(LATENCY_WRITES + 20):
        begin = time.perf_counter()
        await ours.write(plan)
        if number >= 20:
            times.append((time.perf_counter() - begin) * 1e6)
    await ours.close()
    times.sort()
    p50, p90, p99 = (times[int(len(times) * share)] for share in (0.5, 0.9, 0.99))
    print(f"  {kind:<8}    1 MB {p50:>8.0f} µs p50 {p90:>8.0f} µs p90 {p99:>8.0f} µs p99")


async def main() -> None:
    parser = argparse.ArgumentParser(description="KV hand-off beside a bare loop")
    parser.add_argument("kinds", nargs="*", default=[k for k in BARE if k != "nixl" or installed()])
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    print(f"{LAYERS} layers × {PLANES} planes, {options.rounds} rounds")
    for nbytes in SIZES:
        for kind in options.kinds:
            await throughput(kind, nbytes, options.rounds)
    print("one write of 237 segments")
    for kind in options.kinds:
        await latency(kind)


if __name__ == "__main__":
    anyio.run(main)
