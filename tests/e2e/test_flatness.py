"""Streams without end: the process holds no more after the last than after the first thousand."""

from __future__ import annotations

import gc
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import orjson
import pytest

from tests.e2e.conftest import Serve
from tilert_engine.scripted import Script
from tilert_stream.testing.apps import ScriptedApp

if TYPE_CHECKING:
    from collections.abc import Callable

SLOTS = 8
PAGE = os.sysconf("SC_PAGE_SIZE")

RSS_GROWTH = 8 * 1024 * 1024
"""Bytes. What a stream of this test keeps, if it keeps anything, is 1 KB at the least: 9 MB."""


def rss() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def _is_whole(answer: bytes) -> bool:
    head, _, _ = answer.partition(b"\r\n\r\n")
    # An answer that leaves in one piece has a length, and no chunks.
    end = b"[DONE]\n\n" if b"content-length" in head else b"[DONE]\n\n\r\n0\r\n\r\n"
    return answer.endswith(end)


class Streams:
    """So many streams, a few at a time, each on a connection of its own or on one kept alive."""

    def __init__(self, port: int) -> None:
        self._port = port
        body = orjson.dumps({"prompt": "the quick brown fox", "max_tokens": 20, "stream": True})
        head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
        self._request = head.encode() + body
        self._left = 0
        self.complete = 0

    async def run(self, count: int) -> None:
        self._left = count
        async with anyio.create_task_group() as tasks:
            for _ in range(2 * SLOTS):
                tasks.start_soon(self._run_some)

    async def _run_some(self) -> None:
        while self._left > 0:
            async with await anyio.connect_tcp("127.0.0.1", self._port) as client:
                for _ in range(5):
                    self._left -= 1
                    await client.send(self._request)
                    answer = b""
                    while not _is_whole(answer):
                        answer += await client.receive()
                    self.complete += b"data: [DONE]" in answer


@pytest.mark.parametrize(
    ("warm_up", "count"),
    [(100, 1000), pytest.param(1000, 9000, marks=pytest.mark.soak)],
    ids=["short", "soak"],
)
async def test_streams_leave_nothing_behind(
    serve: Serve, warm_up: int, count: int, record_property: Callable[[str, object], None]
) -> None:
    app = ScriptedApp(Script(chunks=2, chain=lambda turn: 1 + turn % 3), slots=SLOTS)
    async with serve(app) as port:
        streams = Streams(port)
        await streams.run(warm_up)
        await anyio.wait_all_tasks_blocked()
        before = rss(), threading.active_count(), descriptors()
        done = streams.complete
        await streams.run(count)
        await anyio.wait_all_tasks_blocked()
        after = rss(), threading.active_count(), descriptors()
        assert streams.complete - done >= count
    record_property("rss_growth_bytes", after[0] - before[0])
    # The event loop keeps a few worker threads for name look-ups, which come and go.
    assert after[1] <= before[1] + SLOTS
    # A connection that the client has closed may still be on its way out.
    assert after[2] <= before[2] + 2 * SLOTS
    assert after[0] - before[0] < RSS_GROWTH
    assert app.service.ledger.counts == {}
    assert app.decode_engine.busy == {}
