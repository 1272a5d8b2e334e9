"""What a transport is measured beside: a loop over the same segments, and nothing around it.

shm: a slice assignment a segment between two memfd mappings; tcp: a thread that sends and one that
receives into place, one call a segment; nixl: one transfer of the native API, polled without pause.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

import numpy as np

from tilert_transports.host_memory import HostMemory, prefault
from tilert_transports.nixl_binding import load, make_agent
from tilert_transports.nixl_memory import Location
from tilert_transports.shm_memory import SharedMemory

if TYPE_CHECKING:
    from tilert_transports.plan import Row

__all__ = ("BARE", "Bare")

Bare = Callable[[], None]
MakeBare = Callable[[int, "tuple[Row, ...]", ExitStack], Bare]
"""From bytes, segments, and what is to be closed afterwards."""


def prepared(memory: HostMemory) -> HostMemory:
    prefault(memory)
    return memory


def bare_copy(nbytes: int, segments: tuple[Row, ...], kind: Callable[[int], HostMemory]) -> Bare:
    source, target = prepared(kind(nbytes)), prepared(kind(nbytes))

    def run() -> None:
        for from_, to, size in segments:
            target.view[to : to + size] = source.view[from_ : from_ + size]

    return run


def bare_shm(nbytes: int, segments: tuple[Row, ...], _stack: ExitStack) -> Bare:
    return bare_copy(nbytes, segments, SharedMemory)


def bare_memory(nbytes: int, segments: tuple[Row, ...], _stack: ExitStack) -> Bare:
    return bare_copy(nbytes, segments, HostMemory.anonymous)


def bare_tcp(nbytes: int, segments: tuple[Row, ...], stack: ExitStack) -> Bare:
    source = prepared(HostMemory.anonymous(nbytes)).view
    target = prepared(HostMemory.anonymous(nbytes)).view
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = stack.enter_context(socket.create_connection(server.getsockname()))
        accepted, _ = server.accept()
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def receive() -> None:
        with accepted:
            while True:
                for _, to, size in segments:
                    view = target[to : to + size]
                    while view:
                        taken = accepted.recv_into(view)
                        if not taken:
                            return
                        view = view[taken:]
                accepted.sendall(b"!")

    receiver = threading.Thread(target=receive, daemon=True)
    receiver.start()
    stack.callback(receiver.join)
    stack.callback(client.shutdown, socket.SHUT_RDWR)

    def run() -> None:
        for from_, _, size in segments:
            client.sendall(source[from_ : from_ + size])
        client.recv(1)

    return run


def bare_nixl(nbytes: int, segments: tuple[Row, ...], _stack: ExitStack) -> Bare:
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


BARE: Final[dict[str, MakeBare]] = {
    "memory": bare_memory,
    "shm": bare_shm,
    "tcp": bare_tcp,
    "nixl": bare_nixl,
}
