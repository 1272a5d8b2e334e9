"""Requests that leave before anybody awaits their answer."""

from __future__ import annotations

import anyio
import pytest

from tests.http.client.conftest import OK, answers, scripted
from tests.http.conftest import Client
from tilert_stream.http.client import HTTPClient, Origin, UpstreamClosed


async def first(client: HTTPClient, origin: Origin) -> None:
    async with client.request(origin, "GET", "/") as response:
        assert await response.read(10) == b"ok"


async def test_it_is_sent_at_once_and_answered_later(client: HTTPClient) -> None:
    seen = anyio.Event()

    async def script(connection: Client) -> None:
        await answers(OK)(connection)
        await connection.until(b"body")
        seen.set()
        await connection.send(OK)
        await connection.rest()

    async with scripted(script) as peer:
        assert client.begin(peer.origin, "POST", "/", body=b"body") is None, "none is kept yet"
        await first(client, peer.origin)
        begun = client.begin(peer.origin, "POST", "/", body=b"body")
        assert begun is not None
        assert begun.body == b"body"
        await seen.wait()
        assert client.statistics().in_use == 1
        async with client.request(
            peer.origin, "POST", "/", body=begun.body, begun=begun
        ) as response:
            assert await response.read(10) == b"ok"
        with pytest.raises(RuntimeError, match="taken"):
            begun.take()
        client.close()


async def test_what_is_too_large_for_one_write_is_sent_on(client: HTTPClient) -> None:
    body = bytes(8 << 20)

    async def script(connection: Client) -> None:
        await answers(OK)(connection)
        received = 0
        while received < len(body):
            received += len(await connection.recv())
        await connection.send(OK)
        await connection.rest()

    async with scripted(script) as peer:
        await first(client, peer.origin)
        begun = client.begin(peer.origin, "POST", "/", body=body)
        async with client.request(peer.origin, "POST", "/", body=body, begun=begun) as response:
            assert await response.read(10) == b"ok"
        client.close()


async def test_given_up_it_ends_its_connection(client: HTTPClient) -> None:
    gone = anyio.Event()

    async def script(connection: Client) -> None:
        await answers(OK)(connection)
        await connection.rest()
        gone.set()

    async with scripted(script) as peer:
        await first(client, peer.origin)
        begun = client.begin(peer.origin, "POST", "/", body=b"body")
        assert begun is not None
        begun.close()
        begun.close()
        await gone.wait()
        assert client.statistics().idle == 0


async def test_a_connection_that_ended_meanwhile(client: HTTPClient) -> None:
    async def script(connection: Client) -> None:
        await answers(OK)(connection)
        await connection.until(b"body")

    async with scripted(script) as peer:
        await first(client, peer.origin)
        begun = client.begin(peer.origin, "POST", "/", body=b"body")
        with pytest.raises(UpstreamClosed):
            await client.open(peer.origin, "POST", "/", body=b"body", begun=begun)
