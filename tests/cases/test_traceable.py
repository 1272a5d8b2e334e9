"""Every answer has an id, and a failure a line with that id and its cause."""

from __future__ import annotations

import logging
import re

import anyio
import anyio.lowlevel
import pytest

from tests.cases.asking import ByteApp
from tests.cases.test_over_a_socket import answer, both, leave, request, serving
from tests.switched_limits import SwitchedLimits
from tilert_engine.scripted import Script
from tilert_stream.testing import Gate

ID = re.compile(r"x-request-id: ([0-9a-f]{32})")


def logged(caplog: pytest.LogCaptureFixture, name: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == name]


def id_of(head: str) -> str:
    found = ID.search(head)
    assert found is not None, head
    return found[1]


@both
async def test_a_limit_that_runs_out_says_which_and_for_whom(
    caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    caplog.set_level(logging.INFO)
    with Gate() as gate:

        def stop(turn: int) -> None:
            if turn == 2:
                limits.count()
                gate.pass_through(turn)

        limits = SwitchedLimits(inter_token=0.05)
        app = ByteApp(Script(before_chain=stop), time_limits=limits)
        async with serving(app, gate) as (_, port):
            head, _ = await answer(
                port, request({"max_tokens": 9, "stream": stream}, "connection: close")
            )
            gate.open()
    rid = id_of(head)
    begun = " after its answer had begun" if stream else ""
    (line,) = logged(caplog, "tilert_stream.asgi.response")
    assert line.startswith(f"request {rid} failed{begun}: 504 inter_token_timeout, ")
    assert [line.endswith(rid) for line in logged(caplog, "tilert_stream.access")] == [True]


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n", 404),
        (b"GET /v1/nope HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n", 404),
        (b"DELETE /v1/models HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n", 405),
        (request({"max_tokens": 0}, "connection: close"), 400),
    ],
)
async def test_what_is_refused_has_an_id(
    caplog: pytest.LogCaptureFixture, sent: bytes, status: int
) -> None:
    caplog.set_level(logging.INFO)
    async with serving(ByteApp()) as (_, port):
        head, body = await answer(port, sent)
    assert head.startswith(f"http/1.1 {status} ")
    assert "content-type: application/json" in head
    assert body.startswith(b'{"error":{"message":')
    (line,) = logged(caplog, "tilert_stream.access")
    assert line.endswith(id_of(head))


async def test_who_left_before_the_head_is_found_by_its_id(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    with Gate() as gate:
        app = ByteApp(Script(before_chunk=gate.pass_through))
        async with serving(app, gate) as (server, port):
            client = await anyio.connect_tcp("127.0.0.1", port)
            await client.send(request({"max_tokens": 3}))
            await gate.arrival()
            await leave(client, reset=False)
            while server.connections:
                await anyio.lowlevel.checkpoint()
    (line,) = logged(caplog, "tilert_stream.access")
    assert re.search(r" 499 0 B .* gone [0-9a-f]{32}$", line)
