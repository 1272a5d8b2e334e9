"""An endpoint of somebody else's that never reads its request's body, on our server."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest
from starlette.types import Receive, Scope, Send

from tests.cases.asking import LIMIT, ByteApp
from tilert_engine.scripted import Script
from tilert_stream.asgi.response import StreamResponse
from tilert_stream.http import Server, ServerSettings
from tilert_stream.openai.completions import parse_completion
from tilert_stream.stages.sse import EncodeSSE
from tilert_stream.testing import Gate


@pytest.mark.parametrize("size", [0, 10, 200_000])
async def test_dis_02_leaving_behind_a_body_that_nobody_read(size: int) -> None:
    with Gate() as gate:
        app = ByteApp(Script(before_chunk=gate.pass_through))

        async def host(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            body = b'{"prompt":"abc","max_tokens":3,"stream":true}'
            request, envelope = parse_completion(body, app.card)
            opened = app.service.open(request, EncodeSSE(envelope))
            await StreamResponse(opened)(scope, receive, send)

        server = Server(host, ServerSettings(port=0))
        with anyio.fail_after(LIMIT):
            async with anyio.create_task_group() as tasks:
                ((_, port),) = await tasks.start(server.serve)
                try:
                    async with await anyio.connect_tcp("127.0.0.1", port) as client:
                        head = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % size
                        await client.send(head + bytes(size))
                        await gate.arrival()
                    while app.service.ledger.counts:
                        await anyio.lowlevel.checkpoint()
                finally:
                    gate.open()
                    server.drain()
