"""Where the server listens, and what it does to an accepted socket."""

from __future__ import annotations

import errno
import socket
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import httpx2
import pytest

from tilert_stream.http import BindFailed, ServerSettings
from tilert_stream.http.ledger import Ledger
from tilert_stream.http.listener import accept_forever, bind

if TYPE_CHECKING:
    from pathlib import Path

    from starlette.types import ASGIApp

    from tests.http.conftest import Serving


async def test_dual_stack(serving: Serving, echo: ASGIApp) -> None:
    async with serving(echo, ServerSettings(host="::", port=0, lifespan="off")) as running:
        ((_, port),) = running.addresses
        assert port is not None
        for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
            with socket.socket(family) as sock:
                sock.connect((host, port))
                async with httpx2.AsyncClient(trust_env=False) as client:
                    url = f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"
                    assert (await client.get(url)).text == "GET / "


async def test_name_is_bound_at_all_its_addresses(serving: Serving, echo: ASGIApp) -> None:
    async with serving(echo, ServerSettings(host="localhost", port=0, lifespan="off")) as running:
        assert len({port for _, port in running.addresses}) == 1
        for host, port in running.addresses:
            url = f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"
            async with httpx2.AsyncClient(trust_env=False) as client:
                assert (await client.get(url)).text == "GET / "


async def test_unix_socket(serving: Serving, echo: ASGIApp, tmp_path: Path) -> None:
    path = tmp_path / "server.sock"
    settings = ServerSettings(uds=str(path), lifespan="off")
    for _ in range(2):
        async with serving(echo, settings) as running:
            assert running.addresses == [(str(path), None)]
            client = await running.connect()
            assert (await client.get()).endswith(b"GET / ")
            with pytest.raises(BindFailed, match="Address already in use"):
                await bind(settings)
        assert not path.exists()


async def test_abandoned_unix_socket_is_replaced(
    serving: Serving, echo: ASGIApp, tmp_path: Path
) -> None:
    path = tmp_path / "server.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    async with serving(echo, ServerSettings(uds=str(path), lifespan="off")) as running:
        assert (await (await running.connect()).get()).endswith(b"GET / ")


async def test_file_in_the_way_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("data")
    with pytest.raises(BindFailed, match="Address already in use"):
        await bind(ServerSettings(uds=str(path)))
    assert path.read_text() == "data"


async def test_unknown_host_is_named() -> None:
    with pytest.raises(BindFailed, match=r"Cannot listen on no-such-host.invalid:8000"):
        await bind(ServerSettings(host="no-such-host.invalid"))


async def test_nagle_is_off() -> None:
    (listener,) = await bind(ServerSettings(port=0))
    accepted: list[socket.socket] = []
    done = anyio.Event()

    def take(sock: socket.socket, client: tuple[str, int | None] | None) -> None:
        accepted.append(sock)
        done.set()

    with listener, socket.socket() as client, anyio.fail_after(60):
        client.connect(listener.getsockname())
        async with anyio.create_task_group() as group:
            group.start_soon(accept_forever, listener, Ledger(), None, take)
            await done.wait()
            group.cancel_scope.cancel()
        with accepted[0] as sock:
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert not sock.getblocking()


class ExhaustedListener(socket.socket):
    """A listener of a process that has no file descriptor left."""

    attempts = 0

    def accept(self) -> tuple[socket.socket, object]:
        self.attempts += 1
        raise OSError(errno.EMFILE, "Too many open files")


class Guest:
    def close(self) -> None: ...

    def close_if_idle(self) -> None: ...


async def test_no_descriptors_waits_for_a_connection_to_close(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """No busy loop: one attempt, and one more for each connection that closes."""
    ledger, guest = Ledger(), Guest()
    ledger.enter(guest)

    def take(sock: socket.socket, client: tuple[str, int | None] | None) -> None:
        raise AssertionError

    with ExhaustedListener() as listener, socket.socket() as client, anyio.fail_after(60):
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.settimeout(0)
        client.connect(listener.getsockname())
        async with anyio.create_task_group() as group:
            group.start_soon(accept_forever, listener, ledger, None, take)
            while not listener.attempts:
                await anyio.lowlevel.checkpoint()
            for _ in range(20):
                await anyio.lowlevel.checkpoint()
            assert listener.attempts == 1
            ledger.leave(guest)
            while listener.attempts < 2:
                await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()
    assert "Too many open files" in caplog.text
