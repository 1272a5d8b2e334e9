"""TileRT's stock prefill connector as a decode node meets it: a prompt in, its KV cache there.

Made from what travels between TileRT's two halves, and not from our own adapter, so that the two
check each other. All of it blocks, as the original does on its own thread, and like the original it
reads nothing after the hello.
"""

from __future__ import annotations

import base64
import json
import socket
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from tilert_transports.nixl_binding import Binding, NativeAgent

__all__ = ("KVSections", "NixlWriter", "StockSender", "WritesKV")

PAGE_TOKENS = 64
PAGE_BYTES = 8448
ROPE_BYTES = 128


@dataclass(frozen=True, slots=True)
class KVSections:
    """A prompt's KV cache, each layer's bytes in one piece.

    The three lists are as long as there are cache layers.
    """

    kv: Sequence[bytes]
    """Latents with their scales: 528 bytes a token, or 1024."""
    pe: Sequence[bytes]
    """Rope: 128 bytes a token."""
    ki: Sequence[bytes]
    """Indexer: whole pages of 8448 bytes."""


class WritesKV(Protocol):
    """One-sided writes to absolute addresses."""

    name: str
    """As it stands in the hello: ``mooncake`` or ``nixl``."""

    def write(self, hello: dict[str, Any], pieces: Sequence[tuple[bytes, int]]) -> None:
        """Write each piece to its address at whoever said ``hello``; returns when it is there."""
        ...


class StockSender:
    """What TileRT's connector does once a prompt has been computed.

    :param layout_version: of the model and dtype that prefill serves.
    """

    def __init__(self, writer: WritesKV, layout_version: int, *, timeout: float = 60) -> None:
        self._writer = writer
        self._layout_version = layout_version
        self._timeout = timeout
        self.hellos: list[dict[str, Any]] = []
        """What decode nodes have said."""

    def send(
        self,
        where: tuple[str, int],
        rid: str,
        seq_len: int,
        last_prompt_token: int,
        sections: KVSections,
        *,
        finish: bool = True,
    ) -> None:
        """Hand one prompt's KV cache over.

        :param where: host and control port.
        :param finish: False dies before the last word.
        :raises AssertionError: the decode node serves another model, dtype or transport.
        :raises OSError: nobody answers there, or the connection was closed without a hello.
        """
        with socket.create_connection(where, timeout=self._timeout) as connection:
            hello = _receive(connection)
            self.hellos.append(hello)
            assert hello["magic"] == "tilert-pd"
            assert hello["layout_version"] == self._layout_version, "layout version mismatch"
            assert hello["transport"] == self._writer.name, "transport mismatch"
            assert seq_len <= hello["max_seq_len"], "seq_len exceeds max_seq_len"
            _send(
                connection,
                {
                    "rid": rid,
                    "rank": 0,
                    "seq_len": seq_len,
                    "last_prompt_token": last_prompt_token,
                    "sampling": None,
                },
            )
            self._writer.write(hello, _placed(hello, seq_len, sections))
            if finish:
                _send(connection, {"done": True, "rid": rid, "rank": 0})


def _placed(hello: dict[str, Any], seq_len: int, sections: KVSections) -> list[tuple[bytes, int]]:
    rows = hello["max_seq_len"]
    row_bytes = len(sections.kv[0]) // seq_len
    pages = -(-rows // PAGE_TOKENS)
    strides = (rows * row_bytes, rows * ROPE_BYTES, pages * PAGE_BYTES)
    pieces: list[tuple[bytes, int]] = []
    for layer, planes in enumerate(zip(sections.kv, sections.pe, sections.ki, strict=True)):
        bases = (hello["kv_base"], hello["pe_base"], hello["ki_base"])
        for piece, base, stride in zip(planes, bases, strides, strict=True):
            pieces.append((piece, base + layer * stride))
    return pieces


def _send(connection: socket.socket, message: dict[str, Any]) -> None:
    body = json.dumps(message).encode()
    connection.sendall(struct.pack(">I", len(body)) + body)


def _receive(connection: socket.socket) -> dict[str, Any]:
    (length,) = struct.unpack(">I", _exactly(connection, 4))
    message: dict[str, Any] = json.loads(_exactly(connection, length))
    return message


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = connection.recv(count - len(data))
        if not piece:
            raise ConnectionError("the decode node has closed the connection")
        data += piece
    return data


class NixlWriter:
    """Writes with an agent of NIXL's own.

    :param name: the agent's, unique among all that ever meet.
    :param device: the CUDA device's index: it then writes from that device's memory and to device
        memory, as the original does; None: from and to host memory.
    """

    name = "nixl"

    def __init__(self, name: str, *, device: int | None = None) -> None:
        from tilert_transports.nixl_binding import load, make_agent

        self._binding: Binding = load()
        self._agent: NativeAgent = make_agent(self._binding, name)
        self._device = device
        self._remotes: dict[str, str] = {}

    def write(self, hello: dict[str, Any], pieces: Sequence[tuple[bytes, int]]) -> None:
        """See ``WritesKV``."""
        import numpy as np

        binding, agent = self._binding, self._agent
        remote = self._remote(hello["nixl_meta"])
        source = np.frombuffer(bytearray().join(piece for piece, _ in pieces), dtype=np.uint8)
        here, kept = int(source.ctypes.data), None
        kind, device = binding.DRAM_SEG, 0
        if self._device is not None:
            kind, device = binding.VRAM_SEG, self._device
            here, kept = _on_device(source, device)
        memory = np.array([(here, source.nbytes, device)], dtype=np.uint64)
        registered = binding.nixlRegDList(kind, memory)
        agent.registerMem(registered, [])
        ours: list[tuple[int, int, int]] = []
        for piece, _ in pieces:
            ours.append((here, len(piece), device))
            here += len(piece)
        theirs = [(address, len(piece), hello["nixl_dev"]) for piece, address in pieces]
        handle = agent.createXferReq(
            binding.NIXL_WRITE,
            binding.nixlXferDList(kind, np.array(ours, dtype=np.uint64)),
            binding.nixlXferDList(kind, np.array(theirs, dtype=np.uint64)),
            remote,
        )
        status = agent.postXferReq(handle)
        while status == binding.NIXL_IN_PROG:
            status = agent.getXferStatus(handle)
        agent.releaseXferReq(handle)
        agent.deregisterMem(registered, [])
        del kept
        assert status == binding.NIXL_SUCCESS

    def _remote(self, metadata: str) -> str:
        if metadata not in self._remotes:
            name = self._agent.loadRemoteMD(base64.b64decode(metadata))
            self._remotes[metadata] = name.decode()
        return self._remotes[metadata]


def _on_device(source: NDArray[np.uint8], device: int) -> tuple[int, object]:
    """The address of a copy on a CUDA device, and what keeps it."""
    import torch

    copy = torch.as_tensor(source, device=f"cuda:{device}")
    torch.cuda.synchronize(device)
    return copy.data_ptr(), copy
