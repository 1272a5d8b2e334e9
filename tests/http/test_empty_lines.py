"""Empty lines in front of a request: some clients end a body with one (RFC 9112, 2.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from tests.http.conftest import Serving

GET = b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.mark.parametrize("lines", [1, 2, 20_000])
async def test_they_are_dropped(serving: Serving, echo: ASGIApp, lines: int) -> None:
    async with serving(echo) as running:
        client = await running.connect()
        await client.send(b"\r\n" * lines + GET % 1)
        assert (await client.answer()).endswith(b"GET /1 ")
        await client.send(b"\r\n" * lines + GET % 2 + b"\r\n" * lines + GET % 3)
        assert (await client.answer()).endswith(b"GET /2 ")
        assert (await client.answer()).endswith(b"GET /3 ")


async def test_in_pieces(serving: Serving, echo: ASGIApp) -> None:
    async with serving(echo) as running:
        client = await running.connect()
        for piece in (b"\r", b"\n", b"\r\n\r", b"\nGE", b"T / HTTP/1.1\r\nHost: x\r\n\r\n\r"):
            await client.send(piece)
            await anyio.wait_all_tasks_blocked()
        assert (await client.answer()).endswith(b"GET / ")
        await client.send(b"\n" + GET % 2)
        assert (await client.answer()).endswith(b"GET /2 ")


async def test_they_are_no_request(serving: Serving, echo: ASGIApp) -> None:
    """The connection is idle still: the drain ends it."""
    async with serving(echo) as running:
        client = await running.connect()
        await client.send(b"\r\n\r\n\r")
        await anyio.wait_all_tasks_blocked()
        running.server.drain()
        assert await client.rest() == b""
    assert running.server.statistics().refused_total == 0


@pytest.mark.parametrize("start", [b"\n", b"\r\r\n", b"\rG"])
async def test_what_is_no_empty_line_is_refused(
    serving: Serving, echo: ASGIApp, start: bytes
) -> None:
    async with serving(echo) as running:
        client = await running.connect()
        await client.send(start + GET % 1)
        assert (await client.rest()).startswith(b"HTTP/1.1 400 ")
