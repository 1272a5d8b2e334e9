"""TileRT's stock decode server as a prefill node and a router meet it.

Made from what travels between TileRT's parts, and not from our own adapter, so that the two check
each other. It has one receive buffer and serves one request at a time. The control port blocks, as
the original's does, on threads of its own; its HTTP is an ASGI app.
"""

from __future__ import annotations

import base64
import json
import socket
import struct
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from anyio import move_on_after, to_thread

from tilert_stream.completion import Completion

from .tilert_sender import PAGE_BYTES, PAGE_TOKENS, ROPE_BYTES, KVSections

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray
    from starlette.types import Receive, Scope, Send

__all__ = ("NixlReceiver", "Received", "ReceivesKV", "StockServer")

Fields: TypeAlias = "dict[str, Any]"


@dataclass(frozen=True, slots=True)
class Received:
    """A prompt whose KV cache has come."""

    seq_len: int
    last_prompt_token: int
    sections: KVSections


class ReceivesKV(Protocol):
    """Memory that is written to from outside."""

    name: str
    """As it stands in the hello: ``mooncake`` or ``nixl``."""
    address: int

    def card(self) -> Fields:
        """What the hello says of it besides."""
        ...

    def read(self, offset: int, nbytes: int) -> bytes:
        """Bytes from the beginning on."""
        ...


class StockServer:
    """A decode server of TileRT's: HTTP is ``server(scope, receive, send)``, ``port`` its control.

    :param receiver: makes the receive buffer, given its bytes.
    :param layout_version: of the model and dtype that it serves.
    :param layers: of the KV cache.
    :param row_bytes: of a latent with its scales: 528 or 1024.
    :param rows: tokens that the buffer has room for.
    :param decode: of what was received, the first token and ``max_tokens``: all ids of the answer,
        the first token included.
    :param gap: bytes between the buffer's planes.
    :param port: for control; 0 takes any free one.
    """

    def __init__(
        self,
        receiver: Callable[[int], ReceivesKV],
        layout_version: int,
        *,
        layers: int,
        row_bytes: int,
        rows: int,
        decode: Callable[[Received, int, int], Sequence[int]],
        gap: int = 0,
        port: int = 0,
    ) -> None:
        self._strides = (
            rows * row_bytes,
            rows * ROPE_BYTES,
            -(-rows // PAGE_TOKENS) * PAGE_BYTES,
        )
        self._row_bytes = row_bytes
        self._layers = layers
        self._rows = rows
        self._version = layout_version
        self._decode = decode
        offset = 0
        self._bases: list[int] = []
        for stride in self._strides:
            self._bases.append(offset)
            offset += layers * stride + gap
        self._receiver = receiver(offset)
        self._lock = threading.Lock()
        self._transfer: str | None = None
        """The rid whose transfer is incomplete."""
        self.arrived: dict[str, Received] = {}
        """By rid: whose KV caches have come."""
        self._awaited: dict[str, Completion[Received]] = {}
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port: int = self._listener.getsockname()[1]
        self.decoding: str | None = None
        """The rid that is being served."""
        self.requests: list[Fields] = []
        """What prefill has said on the control port."""
        self.calls: list[tuple[str, Fields]] = []
        """What routers have said."""
        threading.Thread(target=self._accept, name="stock decode server", daemon=True).start()

    @property
    def busy(self) -> bool:
        """Whether a transfer is incomplete."""
        return self._transfer is not None

    def close(self) -> None:
        """Close the control port."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    # --- control port ------------------------------------------------------------------------

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._converse, args=(connection,), daemon=True).start()

    def _converse(self, connection: socket.socket) -> None:
        with connection, suppress(ConnectionError):
            _send_message(connection, self._hello())
            request = _receive_message(connection)
            self.requests.append(request)
            rid: str = request["rid"]
            if request["seq_len"] > self._rows:
                _send_message(connection, {"error": "seq_len exceeds max_seq_len"})
                return
            with self._lock:
                busy = self._transfer
                if busy is None:
                    self._transfer = rid
            if busy is not None:
                _send_message(connection, {"error": "busy", "busy_rid": busy})
                return
            try:
                _receive_message(connection)
                self._arrive(rid, self._received(request))
            finally:
                self._transfer = None

    def _hello(self) -> Fields:
        names = ("kv_base", "pe_base", "ki_base")
        return {
            "magic": "tilert-pd",
            "layout_version": self._version,
            "transport": self._receiver.name,
            "max_seq_len": self._rows,
            "busy": self.busy,
            **self._receiver.card(),
            **{
                name: self._receiver.address + base
                for name, base in zip(names, self._bases, strict=True)
            },
        }

    def _received(self, request: Fields) -> Received:
        seq_len: int = request["seq_len"]
        pages = -(-seq_len // PAGE_TOKENS)
        sizes = (seq_len * self._row_bytes, seq_len * ROPE_BYTES, pages * PAGE_BYTES)
        sections = KVSections(
            *(
                [self._receiver.read(base + layer * stride, size) for layer in range(self._layers)]
                for base, stride, size in zip(self._bases, self._strides, sizes, strict=True)
            )
        )
        return Received(seq_len, request["last_prompt_token"], sections)

    def _arrive(self, rid: str, received: Received) -> None:
        with self._lock:
            self.arrived[rid] = received
            awaited = self._awaited.pop(rid, None)
        if awaited is not None:
            awaited.set(received)

    async def _arrival(self, rid: str) -> Received:
        completion = Completion[Received]()
        with self._lock:
            if rid in self.arrived:
                completion.set(self.arrived[rid])
            else:
                self._awaited[rid] = completion
        return await completion.wait()

    # --- HTTP --------------------------------------------------------------------------------

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        body, more = b"", True
        while more:
            message = await receive()
            body += bytes(message.get("body", b""))
            more = bool(message.get("more_body"))
        fields: Fields = json.loads(body or b"{}")
        path: str = scope["path"]
        self.calls.append((path, fields))
        if path == "/pd/decode":
            await self._answer(fields, send)
        elif path == "/decode_status":
            status = "idle" if self.decoding is None else "busy"
            await _respond(send, 200, {"status": status, "current_rid": self.decoding})
        elif path == "/pd/cancel":
            known = fields.get("rid") == self.decoding
            await _respond(
                send, 200 if known else 404, {"cancelled": fields.get("rid")} if known else {}
            )
        elif path == "/health":
            await _respond(send, 200, {"status": "ok"})
        else:
            await _respond(send, 404, {"detail": "Not Found"})

    async def _answer(self, fields: Fields, send: Send) -> None:
        rid: str = fields["rid"]
        if self.decoding is not None:
            await _respond(send, 429, {"error": "busy", "current_rid": self.decoding})
            return
        self.decoding = rid
        try:
            begun = time.monotonic()
            received: Received | None = None
            with move_on_after(fields.get("timeout_s") or 120):
                received = await self._arrival(rid)
            if received is None:
                await _respond(send, 504, {"error": "kv_transfer_timeout", "rid": rid})
                return
            landed = time.monotonic()
            ids = await to_thread.run_sync(
                self._decode, received, fields["first_token_id"], fields["max_tokens"]
            )
            timing = {
                "wire_wait": round((landed - begun) * 1e3, 3),
                "convert": 0.0,
                "inject": 0.0,
                "decode": round((time.monotonic() - landed) * 1e3, 3),
                "finish_reason": "length",
            }
            if fields.get("stream"):
                await _stream(send, ids, received.seq_len, timing)
            else:
                answer = {"rid": rid, "token_ids": list(ids), "seq_len": received.seq_len}
                await _respond(send, 200, {**answer, "timing_ms": timing})
        finally:
            self.decoding = None


async def _stream(send: Send, ids: Sequence[int], seq_len: int, timing: Fields) -> None:
    """The first token on a line of its own, the rest as it is drained, then the end."""
    headers = [(b"content-type", b"application/x-ndjson")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    lines: list[Fields] = [{"t": [*ids[:1]]}, {"t": [*ids[1:]]}]
    end = {"done": True, "n": len(ids), "seq_len": seq_len, "finish_reason": "length"}
    for line in (*(line for line in lines if line["t"]), {**end, "timing_ms": timing}):
        body = json.dumps(line).encode() + b"\n"
        await send({"type": "http.response.body", "body": body, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _respond(send: Send, status: int, answer: Fields) -> None:
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(answer).encode()})


def _send_message(connection: socket.socket, message: Fields) -> None:
    body = json.dumps(message).encode()
    connection.sendall(struct.pack(">I", len(body)) + body)


def _receive_message(connection: socket.socket) -> Fields:
    (length,) = struct.unpack(">I", _exactly(connection, 4))
    message: Fields = json.loads(_exactly(connection, length))
    return message


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = connection.recv(count - len(data))
        if not piece:
            raise ConnectionError("prefill has closed the connection")
        data += piece
    return data


class NixlReceiver:
    """A receive buffer of NIXL's own agent, in host memory.

    The original's lies in CUDA memory; see ``device``.

    :param name: the agent's, unique among all that ever meet.
    :param device: the CUDA device's index; None: host memory.
    """

    name = "nixl"

    def __init__(self, name: str, nbytes: int, *, device: int | None = None) -> None:
        import numpy as np

        from tilert_transports.nixl_binding import load, make_agent

        binding = load()
        self._agent = make_agent(binding, name)
        self._device = device
        self._host: NDArray[np.uint8] | None = None
        if device is None:
            self._host = np.zeros(nbytes, dtype=np.uint8)
            self.address = int(self._host.ctypes.data)
        else:
            import torch

            self._tensor = torch.zeros(nbytes, dtype=torch.uint8, device=f"cuda:{device}")
            torch.cuda.synchronize(device)
            self.address = self._tensor.data_ptr()
        row = np.array([(self.address, nbytes, device or 0)], dtype=np.uint64)
        kind = binding.DRAM_SEG if device is None else binding.VRAM_SEG
        self._agent.registerMem(binding.nixlRegDList(kind, row), [])
        self._metadata = base64.b64encode(self._agent.getLocalMD()).decode()

    def card(self) -> Fields:
        """See ``ReceivesKV``."""
        return {"nixl_meta": self._metadata, "nixl_dev": self._device or 0}

    def read(self, offset: int, nbytes: int) -> bytes:
        """See ``ReceivesKV``."""
        if self._host is not None:
            return self._host[offset : offset + nbytes].tobytes()
        there = self._tensor[offset : offset + nbytes].cpu()
        return bytes(there.numpy().tobytes())
