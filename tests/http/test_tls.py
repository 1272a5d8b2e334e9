"""TLS: all that holds without it, and the ends that only it has."""

from __future__ import annotations

import logging
import socket
import ssl
from contextlib import suppress
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import httpx2
import pytest
import trio.testing
import trustme

from tests.http.conftest import Client
from tilert_stream.errors import ConfigError
from tilert_stream.http import Server, ServerSettings, WriteStalled

if TYPE_CHECKING:
    from pathlib import Path

    from starlette.types import ASGIApp, Receive, Scope, Send

    from tests.http.conftest import Running, Serving

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
START: dict[str, object] = {"type": "http.response.start", "status": 200, "headers": []}
PART: dict[str, object] = {"type": "http.response.body", "body": b"part", "more_body": True}
AUTHORITY = trustme.CA()
CERTIFICATE = AUTHORITY.issue_cert("127.0.0.1")


@pytest.fixture(scope="session")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    CERTIFICATE.private_key_and_cert_chain_pem.write_to_path(str(path))
    return path


@pytest.fixture
def settings(pem: Path) -> ServerSettings:
    return ServerSettings(port=0, lifespan="off", ssl_certfile=str(pem))


def trusting() -> ssl.SSLContext:
    return ssl.create_default_context(cadata=AUTHORITY.cert_pem.bytes().decode())


class TLSClient(Client):
    """Every record is the test's own: ``tls.unwrap`` is the goodbye."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext) -> None:
        self.tls = context.wrap_socket(
            sock,
            server_hostname="127.0.0.1",
            do_handshake_on_connect=False,
            suppress_ragged_eofs=False,
        )
        super().__init__(self.tls)

    async def handshake(self) -> None:
        while True:
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                await anyio.wait_readable(self.tls)
            else:
                return

    async def send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[self.tls.send(view) :]
            except ssl.SSLWantWriteError:
                await anyio.wait_writable(self.tls)

    async def recv(self) -> bytes:
        while True:
            try:
                return self.tls.recv(65536)
            except ssl.SSLWantReadError:
                await anyio.wait_readable(self.tls)

    def say_goodbye(self) -> None:
        with pytest.raises(ssl.SSLWantReadError):
            self.tls.unwrap()

    def leave(self, how: str) -> None:
        if how == "goodbye":
            self.say_goodbye()
        if how == "rst":
            self.reset()
        else:
            self.close()


async def connect(running: Running, *, receive_buffer: int | None = None) -> TLSClient:
    plain = await running.connect(receive_buffer=receive_buffer)
    client = TLSClient(plain.sock, trusting())
    running.clients[-1] = client
    await client.handshake()
    return client


async def request_begun(running: Running) -> None:
    while not running.server.statistics().requests:
        await anyio.lowlevel.checkpoint()


async def test_requests_on_one_connection(
    serving: Serving, echo: ASGIApp, settings: ServerSettings
) -> None:
    schemes: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        schemes.append(scope["scheme"])
        await echo(scope, receive, send)

    async with serving(app, settings) as running:
        client = await connect(running)
        assert (await client.get("/a")).endswith(b"GET /a ")
        await client.send(GET + GET)
        assert (await client.answer()).endswith(b"GET / ")
        assert (await client.answer()).endswith(b"GET / ")
        assert running.server.statistics().accepted_total == 1
    assert schemes == ["https"] * 3


async def test_large_bodies_both_ways(
    serving: Serving, echo: ASGIApp, settings: ServerSettings
) -> None:
    body = bytes(range(256)) * 20_000
    async with serving(echo, settings) as running, anyio.create_task_group() as tasks:
        client = await connect(running)
        head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
        tasks.start_soon(client.send, head + body)
        assert (await client.answer()).endswith(b"\r\n\r\nPOST / " + body)


async def test_an_ordinary_client(
    serving: Serving, echo: ASGIApp, settings: ServerSettings
) -> None:
    async with serving(echo, settings) as running:
        url = running.url.replace("http:", "https:")
        async with httpx2.AsyncClient(verify=trusting(), trust_env=False) as client:
            assert (await client.post(url, content=b"hi")).text == "POST / hi"


@pytest.mark.parametrize("how", ["goodbye", "fin", "rst"])
@pytest.mark.parametrize("streaming", [True, False])
async def test_client_that_leaves_is_seen_at_once(
    serving: Serving,
    settings: ServerSettings,
    caplog: pytest.LogCaptureFixture,
    how: str,
    *,
    streaming: bool,
) -> None:
    caplog.set_level(logging.INFO, logger="tilert_stream.http")
    told = anyio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if streaming:
            await send(START)
            await send(PART)
        assert (await receive())["type"] == "http.request"
        assert (await receive())["type"] == "http.disconnect"
        told.set()

    async with serving(app, settings) as running:
        client = await connect(running)
        await client.send(GET)
        if streaming:
            await client.until(b"part")
        else:
            await request_begun(running)
        client.leave(how)
        await told.wait()
        await running.no_connections()
        assert running.server.statistics().gone_total == 1
    (record,) = caplog.records
    assert (record.levelno, record.exc_info) == (logging.INFO, None)


async def test_half_close_is_a_goodbye_where_it_is_allowed(
    serving: Serving, echo: ASGIApp, pem: Path
) -> None:
    proceed = anyio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await proceed.wait()
        await echo(scope, receive, send)

    settings = ServerSettings(port=0, lifespan="off", ssl_certfile=str(pem), allow_half_close=True)
    async with serving(app, settings) as running:
        client = await connect(running)
        await client.send(GET)
        await request_begun(running)
        client.say_goodbye()
        await anyio.wait_all_tasks_blocked()
        proceed.set()
        assert (await client.answer()).endswith(b"GET / ")


async def test_a_complete_answer_ends_with_a_goodbye(
    serving: Serving, settings: ServerSettings
) -> None:
    """Without it the end of a close-delimited body could be anybody's FIN."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(START)
        await send(PART)
        await send({"type": "http.response.body"})

    async with serving(app, settings) as running:
        client = await connect(running)
        await client.send(b"GET / HTTP/1.0\r\n\r\n")
        assert (await client.rest()).endswith(b"\r\n\r\npart")


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
async def test_a_cut_is_seen(serving: Serving, settings: ServerSettings, version: bytes) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(START)
        await send(PART)

    async with serving(app, settings) as running:
        client = await connect(running)
        await client.send(b"GET / HTTP/%b\r\nHost: x\r\n\r\n" % version)
        await client.until(b"part")
        if version == b"1.0":
            # OpenSSL reads a reset in the middle of a connection as an end that it does not allow.
            with pytest.raises((ConnectionResetError, ssl.SSLEOFError)):
                await client.rest()
        else:
            assert await client.rest() == b"\r\n"
        await running.no_connections()
        assert running.server.statistics().cut_total == 1


async def test_a_refusal_is_read(serving: Serving, echo: ASGIApp, settings: ServerSettings) -> None:
    async with serving(echo, settings) as running:
        client = await connect(running)
        await client.send(b"nonsense\r\n\r\n" + bytes(100_000))
        assert (await client.until(b"}}")).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("sent", [GET, bytes(100), b"\x16\x03\x01\x00\x05hello", b"\x16\x03"])
async def test_who_speaks_no_tls_is_closed(
    serving: Serving,
    echo: ASGIApp,
    settings: ServerSettings,
    caplog: pytest.LogCaptureFixture,
    sent: bytes,
) -> None:
    async with serving(echo, settings) as running:
        client = await running.connect()
        await client.send(sent)
        client.end_output()
        with suppress(ConnectionResetError):
            assert b"HTTP" not in await client.rest()
        await running.no_connections()
        assert (await (await connect(running)).get()).endswith(b"GET / ")
    # Of the server only: a test before this one may have left a task that ends with a word.
    noise = [record for record in caplog.records if record.name.startswith("tilert_stream")]
    assert [record for record in noise if record.levelno > logging.INFO] == []


async def test_drain_says_goodbye_to_the_idle(
    serving: Serving, echo: ASGIApp, settings: ServerSettings
) -> None:
    async with serving(echo, settings) as running:
        client = await connect(running)
        await client.get()
        running.server.drain()
        assert await client.rest() == b""


async def test_certificate_that_cannot_be_used(echo: ASGIApp, pem: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.pem"
    trustme.CA().issue_cert("127.0.0.1").private_key_pem.write_to_path(str(other))
    for certificate, key in ((tmp_path / "none.pem", None), (pem, other), (other, None)):
        settings = ServerSettings(
            port=0, ssl_certfile=str(certificate), ssl_keyfile=str(key) if key else None
        )
        with pytest.raises(ConfigError, match="cannot be used") as caught:
            await Server(echo, settings).serve()
        assert caught.value.param == "ssl_certfile"


def test_key_without_certificate() -> None:
    with pytest.raises(ConfigError, match="ssl_keyfile is given without ssl_certfile"):
        ServerSettings(ssl_keyfile="key.pem")


@pytest.fixture
def jumping_clock() -> tuple[str, dict[str, object]]:
    return "trio", {"clock": trio.testing.MockClock(autojump_threshold=0.05)}


class TestTimeLimits:
    @pytest.fixture
    def anyio_backend(
        self, jumping_clock: tuple[str, dict[str, object]]
    ) -> tuple[str, dict[str, object]]:
        return jumping_clock

    async def test_client_that_takes_nothing_is_dropped(self, serving: Serving, pem: Path) -> None:
        stalled = anyio.Event()

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await send(START)
            try:
                while True:
                    await send({**PART, "body": bytes(65536)})
            except WriteStalled:
                stalled.set()

        settings = ServerSettings(
            port=0, lifespan="off", ssl_certfile=str(pem), write_stall_timeout=3600
        )
        async with serving(app, settings, limit=None) as running:
            client = await connect(running, receive_buffer=4096)
            await client.send(GET)
            began = anyio.current_time()
            await stalled.wait()
            assert anyio.current_time() - began == pytest.approx(3600, abs=10)

    async def test_handshake_that_does_not_go_on(
        self, serving: Serving, echo: ASGIApp, pem: Path
    ) -> None:
        settings = ServerSettings(
            port=0, lifespan="off", ssl_certfile=str(pem), header_timeout=3600
        )
        async with serving(echo, settings, limit=None) as running:
            client = await running.connect()
            began = anyio.current_time()
            with pytest.raises(ConnectionResetError):
                await client.rest()
            assert anyio.current_time() - began == pytest.approx(3600, abs=10)
