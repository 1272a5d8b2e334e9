"""A prefill node whose every word on a control connection is the test's own, over a real socket."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio

from tilert_stream.cluster.prompt_digest import prompt_digest
from tilert_transports.control.auth import ClusterKey
from tilert_transports.control.frames import FrameReader, encode_frame
from tilert_transports.control.handshake import PrefillHandshake
from tilert_transports.control.hello import NONCE_BYTES, Hello
from tilert_transports.control.messages import Claim, Commit, Message, to_json

if TYPE_CHECKING:
    from anyio.abc import SocketStream

    from tests.pd.cluster import Cluster

__all__ = ("RawPrefill", "raw_prefill")

PROMPT = (97, 98, 99)
"""What ``Cluster.ask`` asks about."""


class RawPrefill:
    """Made by ``raw_prefill``: the handshake is over."""

    def __init__(self, stream: SocketStream, peer: Hello) -> None:
        self.stream = stream
        self.peer = peer
        self._reader = FrameReader()
        self._heard: list[dict[str, Any]] = []

    async def say(self, message: Message) -> None:
        await self.stream.send(encode_frame(to_json(message)))

    async def hear(self) -> dict[str, Any]:
        """The decode node's next word, heartbeats apart.

        :raises anyio.EndOfStream: it has closed the connection.
        """
        while True:
            while self._heard:
                message = self._heard.pop(0)
                if message["type"] not in ("ping", "pong"):
                    return message
            self._heard += self._reader.feed(await self.stream.receive())

    def claim(self, request: str, generation: int, *, rank: int = 0, **fields: Any) -> Claim:
        whole: dict[str, Any] = {
            "request": request,
            "incarnation": self.peer.incarnation,
            "generation": generation,
            "rank": rank,
            "tokens": 3,
            "nbytes": 12,
            "last_token": 99,
            "digest": prompt_digest(PROMPT),
        }
        return Claim(**{**whole, **fields})

    def commit(self, generation: int, nbytes: int = 12) -> Commit:
        return Commit(generation, nbytes)


def hello_of(cluster: Cluster, node: int = 0) -> Hello:
    """A prefill node that fits a decode node of the cluster."""
    layout = cluster.models[node].layout
    return Hello(
        node="raw",
        role="prefill",
        incarnation="p-1",
        layout=layout.describe(),
        max_seq_len=layout.max_seq_len,
        transport=cluster.transport,
        card=b"",
        nonce=bytes(NONCE_BYTES),
    )


@asynccontextmanager
async def raw_prefill(
    cluster: Cluster, *, key: ClusterKey | None = None
) -> AsyncGenerator[RawPrefill]:
    """Connected to the cluster's first decode node."""
    handshake = PrefillHandshake(hello_of(cluster), key)
    stream = await anyio.connect_tcp("127.0.0.1", cluster.ports[0].port)
    async with stream:
        reader = FrameReader()
        while handshake.peer is None:
            for content in reader.feed(await stream.receive()):
                answer = handshake.receive(content)
                if answer is not None:
                    await stream.send(encode_frame(answer))
        yield RawPrefill(stream, handshake.peer)
