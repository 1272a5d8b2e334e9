"""Whatever comes in: an answer or a close, no connection left, no word in the log above info."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from tests.http.conftest import Client, Running, Serving

FUZZ = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
SOAK = settings(
    FUZZ,
    max_examples=5000,
    derandomize=False,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

REQUESTS = [
    b"GET /a?b=c HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello",
    b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    b"POST /a HTTP/1.0\r\nContent-Length: 2\r\n\r\nhi",
    b"HEAD / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n\r\n",
]

PIECES = st.sampled_from(
    [
        *REQUESTS,
        b"GET / HTTP/1.1\r\n",
        b"Host: x\r\n",
        b"Content-Length: 3\r\n",
        b"Content-Length: 99999999999\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Connection: upgrade\r\nUpgrade: h2c\r\n",
        b"Expect: 100-continue\r\n",
        b"\r\n",
        b"\n",
        b"\x00",
        b"ffffffffffffffffff\r\n",
        b"0\r\n\r\n",
    ]
)


async def read_to_end(client: Client) -> bytes:
    try:
        return await client.rest()
    except ConnectionResetError:
        return client.buffer


async def exchange(running: Running, data: bytes, *, reset: bool) -> None:
    client = await running.connect()
    try:
        await client.send(data)
        if reset:
            client.reset()
        else:
            client.end_output()
            answer = await read_to_end(client)
            assert not re.search(rb"HTTP/1\.1 5(?!01|05)", answer)
    except (BrokenPipeError, ConnectionResetError):
        pass
    client.close()
    await running.no_connections()


@pytest.mark.parametrize("request_bytes", REQUESTS)
@pytest.mark.parametrize("reset", [False, True])
async def test_cut_at_every_offset(
    serving: Serving,
    echo: ASGIApp,
    request_bytes: bytes,
    reset: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    async with serving(echo) as running:
        for offset in range(len(request_bytes)):
            await exchange(running, request_bytes[:offset], reset=reset)
        statistics = running.server.statistics()
        assert statistics.accepted_total == len(request_bytes)
        assert statistics.refused_total == 0
    assert not [record for record in caplog.records if record.levelno > logging.INFO]


ANYTHING = st.lists(st.one_of(PIECES, st.binary(max_size=20)), max_size=8).map(b"".join)


async def any_bytes(
    serving: Serving, app: ASGIApp, caplog: pytest.LogCaptureFixture, data: bytes, *, reset: bool
) -> None:
    caplog.clear()
    async with serving(app) as running:
        await exchange(running, data, reset=reset)
        assert running.server.connections == 0
    assert not [record for record in caplog.records if record.levelno > logging.INFO]


@FUZZ
@given(data=ANYTHING)
async def test_anything(
    serving: Serving, echo: ASGIApp, caplog: pytest.LogCaptureFixture, data: bytes
) -> None:
    await any_bytes(serving, echo, caplog, data, reset=False)


@pytest.mark.soak
@SOAK
@given(data=ANYTHING, reset=st.booleans())
async def test_anything_for_long(
    serving: Serving, echo: ASGIApp, caplog: pytest.LogCaptureFixture, data: bytes, reset: bool
) -> None:
    await any_bytes(serving, echo, caplog, data, reset=reset)


@pytest.mark.soak
@settings(SOAK, max_examples=100)
@given(data=ANYTHING, reset=st.booleans())
async def test_anything_cut_at_every_offset(
    serving: Serving, echo: ASGIApp, caplog: pytest.LogCaptureFixture, data: bytes, reset: bool
) -> None:
    caplog.clear()
    async with serving(echo) as running:
        for offset in range(len(data) + 1):
            await exchange(running, data[:offset], reset=reset)
    assert not [record for record in caplog.records if record.levelno > logging.INFO]


@FUZZ
@given(data=st.data())
async def test_any_segmentation_gives_the_same_answers(
    serving: Serving, echo: ASGIApp, data: st.DataObject
) -> None:
    requests = b"".join(REQUESTS[1:3]) + REQUESTS[0]
    cuts = sorted(data.draw(st.sets(st.integers(1, len(requests) - 1), max_size=6)))
    async with serving(echo) as running:
        client = await running.connect()
        for begin, end in zip([0, *cuts], [*cuts, len(requests)], strict=True):
            await client.send(requests[begin:end])
        bodies = [(await client.answer()).partition(b"\r\n\r\n")[2] for _ in range(3)]
        assert bodies == [b"POST /a hello", b"POST /a abc", b"GET /a "]
        assert await client.rest() == b""
