"""A client that reads nothing, on our server: its slot comes back, the others do not notice."""

from __future__ import annotations

import socket
from contextlib import closing
from typing import TYPE_CHECKING

import anyio
import orjson
import pytest
import trio
import trio.testing

from tests.cases.asking import ByteApp, Said, ask
from tilert_engine.scripted import Script
from tilert_stream.http import Server, ServerSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

HOUR = 3600.0
LENGTH = 60_000


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, object]]:
    # It stands still: an engine's thread may be slow.
    return "trio", {"clock": trio.testing.MockClock()}


def post(fields: dict[str, object]) -> bytes:
    body = orjson.dumps({"prompt": "abc"} | fields)
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
    return head + body


async def test_dis_09_a_reader_that_takes_nothing_is_dropped() -> None:
    """The engine goes on into a buffer that ``max_tokens`` bounds, so that its slot serves the next
    one meanwhile; the connection ends with the stalled write."""
    emitted: list[int] = []

    def counted(prompt: Sequence[int], index: int) -> int:
        emitted.append(index)
        return prompt[index % len(prompt)]

    app = ByteApp(Script(token=counted), max_seq_len=LENGTH + 10)
    settings = ServerSettings(port=0, write_stall_timeout=HOUR, idle_timeout=9 * HOUR)
    server = Server(app, settings, on_drain=app.service.drain)
    async with anyio.create_task_group() as tasks:
        ((_, port),) = await tasks.start(server.serve)
        with closing(socket.socket()) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", port))
            client.sendall(post({"max_tokens": LENGTH, "stream": True}))
            # The only slot: it is served when the first one's is free.
            said = await ask(app, {"max_tokens": 2}, stream=True)
            assert said == Said("ab", "length", 2)
            # The engine is done. Real time: that much without any I/O, and the clock jumps.
            clock = trio.lowlevel.current_clock()
            assert isinstance(clock, trio.testing.MockClock)
            clock.autojump_threshold = 0.05
            await anyio.sleep(0.9 * HOUR)
            assert server.connections == 1
            await anyio.sleep(0.2 * HOUR)
            assert server.connections == 0
            assert server.statistics().gone_total == 1
        assert app.service.ledger.counts == {}
        assert len(emitted) <= LENGTH + 10
        server.drain()
    assert app.decode_engine.busy == {}
