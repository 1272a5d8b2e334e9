"""A client that reads nothing, with a router between it and the decode node."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import anyio
import anyio.lowlevel
import orjson

from tests.pd.cluster import SETTINGS, Cluster, ScriptedModel
from tilert_engine.scripted import Script

LENGTH = 400_000
"""Tokens, each a byte of text: about twice what the socket's two ends hold unread."""
CHAIN = 500


def post(**fields: object) -> bytes:
    body = orjson.dumps({"prompt": "abc", **fields})
    head = (
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
        b"content-length: %d\r\n\r\n" % len(body)
    )
    return head + body


async def ask(path: Path, max_tokens: int) -> str:
    async with await anyio.connect_unix(path) as client:
        await client.send(post(max_tokens=max_tokens))
        answer = b""
        try:
            while True:
                answer += await client.receive()
        except anyio.EndOfStream:
            text: str = orjson.loads(answer.partition(b"\r\n\r\n")[2])["choices"][0]["text"]
            return text


async def test_dis_09_a_reader_that_takes_nothing_behind_a_router_is_dropped(
    tmp_path: Path,
) -> None:
    """Its answer ends in a buffer that ``max_tokens`` bounds: the only slot serves the next one
    meanwhile, through the same router. The stalled write then ends its connection."""
    window = LENGTH + 10
    script = Script(chain=lambda _turn: CHAIN)
    model = ScriptedModel(script, slots=1, longest=window)
    cluster = Cluster(decode_models=[model])
    path = tmp_path / "router"
    settings = replace(SETTINGS, uds=str(path), write_stall_timeout=1.5)
    async with cluster.running():
        router = await cluster.add_router(settings, max_seq_len=window)
        async with await anyio.connect_unix(path) as client:
            await client.send(post(max_tokens=LENGTH, stream=True))
            node = cluster.decode_apps[0].node
            while not node.requests:
                await anyio.lowlevel.checkpoint()
            while node.requests:
                await anyio.lowlevel.checkpoint()
            assert await ask(path, 5) == "abcab"
            assert router.server.statistics().gone_total == 0, "it is still waited for"
            while router.server.connections:
                await anyio.lowlevel.checkpoint()
            assert router.server.statistics().gone_total == 1
        await cluster.idle()
        assert await ask(path, 3) == "abc"
        await cluster.idle()
