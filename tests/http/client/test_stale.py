"""Kept connections that the server closes: replaced unseen where that is harmless, else told."""

from __future__ import annotations

import anyio
import pytest

from tests.http.client.conftest import OK, Peer, Script, answers, listening, scripted
from tests.http.conftest import Client
from tilert_stream.http.client import HTTPClient, UpstreamClosed
from tilert_stream.http.client.connection import ClientConnection


async def first(client: HTTPClient, peer: Peer) -> None:
    async with client.request(peer.origin, "GET", "/") as response:
        assert await response.read(10) == b"ok"
    assert client.statistics().idle == 1


async def test_closed_while_it_was_idle(client: HTTPClient) -> None:
    """Seen before anything is sent, so that even a POST goes through."""
    async with scripted(answers(OK), answers(OK)) as peer:
        await first(client, peer)
        await idle(client).wait_ended()
        async with client.request(peer.origin, "POST", "/") as response:
            assert await response.read(10) == b"ok"
        assert client.statistics().reused_total == 0
        assert client.statistics().opened_total == 2


def idle(client: HTTPClient) -> ClientConnection:
    (connections,) = client._idle.values()  # pyright: ignore[reportPrivateUsage] - the end of an idle connection has no other event
    return connections[0]


async def test_said_something_while_it_was_idle(client: HTTPClient) -> None:
    go = anyio.Event()

    async def script(connection: Client) -> None:
        await answers(OK)(connection)
        await go.wait()
        await connection.send(OK)
        await connection.rest()

    async with scripted(script, answers(OK)) as peer:
        await first(client, peer)
        go.set()
        await idle(client).wait_ended()
        await first(client, peer)
        assert client.statistics().opened_total == 2


def ends_at_the_second(end: str) -> Script:
    """Answer one request, read the next, and go."""

    async def script(connection: Client) -> None:
        await answers(OK)(connection)
        await connection.until(b"\r\n\r\n")
        if end == "reset":
            connection.reset()

    return script


@pytest.mark.parametrize("end", ["close", "reset"])
async def test_a_get_whose_connection_ended_is_sent_again(client: HTTPClient, end: str) -> None:
    async with scripted(ends_at_the_second(end), answers(OK)) as peer:
        await first(client, peer)
        await first(client, peer)
        assert client.statistics().retried_total == 1


@pytest.mark.parametrize("end", ["close", "reset"])
async def test_a_post_that_may_have_been_read_is_not(client: HTTPClient, end: str) -> None:
    async with scripted(ends_at_the_second(end)) as peer:
        await first(client, peer)
        with pytest.raises(UpstreamClosed):
            await client.open(peer.origin, "POST", "/")
        assert client.statistics().retried_total == 0


async def test_a_post_that_may_be_repeated(client: HTTPClient) -> None:
    async with scripted(ends_at_the_second("close"), answers(OK)) as peer:
        await first(client, peer)
        async with client.request(peer.origin, "POST", "/", repeatable=True) as response:
            assert await response.read(10) == b"ok"


async def test_it_is_repeated_once_only(client: HTTPClient) -> None:
    async with scripted(ends_at_the_second("close"), answers(b"")) as peer:
        await first(client, peer)
        with pytest.raises(UpstreamClosed):
            await client.open(peer.origin, "GET", "/")
        assert client.statistics().retried_total == 1


async def test_not_once_something_was_answered(client: HTTPClient) -> None:
    async with scripted(answers(OK, b"HTTP/1.1 2")) as peer:
        await first(client, peer)
        with pytest.raises(UpstreamClosed):
            await client.open(peer.origin, "GET", "/")
        assert client.statistics().retried_total == 0


async def test_a_new_connection_is_not_repeated(client: HTTPClient) -> None:
    async with scripted(answers(b"")) as peer:
        with pytest.raises(UpstreamClosed):
            await client.open(peer.origin, "GET", "/")


async def test_a_post_of_which_no_byte_was_taken(client: HTTPClient) -> None:
    """The server closed between our look at the connection and our write: its kernel took nothing,
    and says so, so that repeating is no second request."""
    async with listening() as peer, anyio.create_task_group() as tasks:
        tasks.start_soon(peer.run, answers(OK), answers(OK))
        await first(client, peer)
        await idle(client).wait_ended()
        idle(client).is_stale = lambda: False  # type: ignore[method-assign]  # the look came too early
        async with client.request(peer.origin, "POST", "/") as response:
            assert await response.read(10) == b"ok"
        assert client.statistics().retried_total == 1


async def test_an_old_connection_is_not_used() -> None:
    with HTTPClient(idle_timeout=0) as client:
        async with scripted(answers(OK), answers(OK)) as peer:
            await first(client, peer)
            await first(client, peer)
            assert client.statistics().opened_total == 2
