"""The client and our own server: what a router does all day."""

from __future__ import annotations

import ssl
from pathlib import Path

import anyio
import pytest
import trustme
from starlette.types import Message, Receive, Scope, Send

from tests.http.conftest import PLAIN, Running, Serving, hello, read_body
from tilert_stream.http import ServerSettings
from tilert_stream.http.client import ConnectFailed, HTTPClient, Origin

START: Message = {"type": "http.response.start", "status": 200, "headers": []}
AUTHORITY = trustme.CA()
CERTIFICATE = AUTHORITY.issue_cert("127.0.0.1", "localhost")


def part(body: bytes, *, more: bool) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": more}


def origin_of(running: Running) -> Origin:
    host, port = running.addresses[0]
    if port is None:
        return Origin.parse(f"http+unix://{host}")
    return Origin.parse(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")


async def test_a_request_and_its_answer(client: HTTPClient, serving: Serving) -> None:
    async with serving(hello) as running:
        origin = origin_of(running)
        async with client.request(origin, "POST", "/a?b=c", [("x", "y")], b"body") as response:
            assert response.status == 200
            assert response.header(b"content-length") == "12"
            assert response.header(b"x-none") is None
            assert await response.read(100) == b"POST /a body"
            assert response.complete


async def test_a_connection_is_kept_for_the_next_request(
    client: HTTPClient, serving: Serving
) -> None:
    async with serving(hello) as running:
        origin = origin_of(running)
        for _ in range(3):
            async with client.request(origin, "GET", "/") as response:
                assert await response.read(100) == b"GET / "
        statistics = client.statistics()
        assert (statistics.opened_total, statistics.reused_total, statistics.idle) == (1, 2, 1)
        assert running.server.statistics().accepted_total == 1
        client.close()


async def test_origins_do_not_share_connections(client: HTTPClient, serving: Serving) -> None:
    async with serving(hello) as one, serving(hello) as two:
        for running in (one, two, one, two):
            async with client.request(origin_of(running), "GET", "/") as response:
                await response.read(100)
        assert client.statistics().opened_total == 2
        client.close()


async def test_requests_at_once_have_connections_of_their_own(serving: Serving) -> None:
    arrived = 0
    all_there = anyio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal arrived
        arrived += 1
        if arrived == 3:
            all_there.set()
        await all_there.wait()
        await hello(scope, receive, send)

    with HTTPClient(max_idle=2) as client:
        async with serving(app) as running:
            origin = origin_of(running)

            async def ask() -> None:
                async with client.request(origin, "GET", "/") as response:
                    assert await response.read(100) == b"GET / "

            async with anyio.create_task_group() as tasks:
                for _ in range(3):
                    tasks.start_soon(ask)
            assert client.statistics().opened_total == 3
            assert client.statistics().idle == 2, "no more than max_idle are kept"
            client.close()


async def test_head_has_no_body(client: HTTPClient, serving: Serving) -> None:
    async with serving(hello) as running:
        origin = origin_of(running)
        async with client.request(origin, "HEAD", "/") as response:
            assert response.header(b"content-length") == "7"
            assert await response.read(0) == b""
        async with client.request(origin, "GET", "/") as response:
            assert await response.read(100) == b"GET / "
        assert client.statistics().reused_total == 1
        client.close()


async def test_pieces_arrive_as_they_are_sent(client: HTTPClient, serving: Serving) -> None:
    go = [anyio.Event() for _ in range(3)]

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(START)
        for number, event in enumerate(go):
            await send(part(b"%d" % number, more=True))
            await event.wait()
        await send(part(b"", more=False))

    async with serving(app) as running:
        async with client.request(origin_of(running), "GET", "/") as response:
            seen: list[bytes] = []
            async for piece in response.chunks():
                go[len(seen)].set()
                seen.append(piece)
            assert seen == [b"0", b"1", b"2"]
            assert await response.receive() == b""
        assert client.statistics().idle == 1
        client.close()


async def test_leaving_early_is_seen_at_once(client: HTTPClient, serving: Serving) -> None:
    """Also while nothing flows: the server's listener sees the end of the connection."""
    seen: list[str] = []
    gone = anyio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await read_body(receive)
        await send(START)
        await send(part(b"some", more=True))
        seen.append((await receive())["type"])
        gone.set()

    async with serving(app) as running:
        async with client.request(origin_of(running), "POST", "/") as response:
            assert await response.receive() == b"some"
            assert client.statistics().in_use == 1
        await gone.wait()
        assert seen == ["http.disconnect"]
        assert client.statistics().idle == 0


async def test_a_large_body_each_way(client: HTTPClient, serving: Serving) -> None:
    async with serving(hello) as running:
        body = bytes(range(256)) * 32768
        async with client.request(origin_of(running), "POST", "/", body=body) as response:
            assert await response.read(len(body) + 100) == b"POST / " + body
        client.close()


async def test_a_unix_socket(client: HTTPClient, serving: Serving, tmp_path: Path) -> None:
    settings = ServerSettings(uds=str(tmp_path / "s"), lifespan="off")
    async with serving(hello, settings) as running:
        for _ in range(2):
            async with client.request(origin_of(running), "GET", "/x") as response:
                assert await response.read(100) == b"GET /x "
        assert client.statistics().reused_total == 1
        client.close()


async def test_ipv6(client: HTTPClient, serving: Serving) -> None:
    async with serving(hello, ServerSettings(host="::1", port=0, lifespan="off")) as running:
        async with client.request(origin_of(running), "GET", "/x") as response:
            assert await response.read(100) == b"GET /x "
        client.close()


async def test_a_name_with_an_address_that_refuses(client: HTTPClient, serving: Serving) -> None:
    """Whatever addresses the name has, the one that listens is found."""
    async with serving(hello, PLAIN) as running:
        port = running.addresses[0][1]
        origin = Origin.parse(f"http://localhost:{port}")
        async with client.request(origin, "GET", "/") as response:
            assert await response.read(100) == b"GET / "
        client.close()


@pytest.fixture(scope="session")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    CERTIFICATE.private_key_and_cert_chain_pem.write_to_path(str(path))
    return path


def secure_origin(running: Running) -> Origin:
    return Origin.parse(f"https://127.0.0.1:{running.addresses[0][1]}", label="the node")


async def test_https(serving: Serving, pem: Path) -> None:
    settings = ServerSettings(port=0, lifespan="off", ssl_certfile=str(pem))
    context = ssl.create_default_context(cadata=AUTHORITY.cert_pem.bytes().decode())
    body = bytes(range(256)) * 4096
    with HTTPClient(context=context) as client:
        async with serving(hello, settings) as running:
            for _ in range(2):
                async with client.request(
                    secure_origin(running), "POST", "/", body=body
                ) as response:
                    assert await response.read(len(body) + 100) == b"POST / " + body
            assert client.statistics().reused_total == 1
            client.close()


async def test_https_of_a_stranger(client: HTTPClient, serving: Serving, pem: Path) -> None:
    """Its certificate is of no authority that this client knows."""
    settings = ServerSettings(port=0, lifespan="off", ssl_certfile=str(pem))
    async with serving(hello, settings) as running:
        with pytest.raises(ConnectFailed, match=r"the node cannot be reached.*CERTIFICATE_VERIFY"):
            await client.open(secure_origin(running), "GET", "/")


async def test_https_where_nobody_speaks_it(client: HTTPClient, serving: Serving) -> None:
    async with serving(hello) as running:
        with pytest.raises(ConnectFailed, match="the node cannot be reached"):
            await client.open(secure_origin(running), "GET", "/")
