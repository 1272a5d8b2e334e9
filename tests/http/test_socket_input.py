"""Who is told of a socket's bytes, and what that costs: one registration, and no idle turns."""

from __future__ import annotations

import os
import socket
import ssl
import struct
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import anyio
import anyio.lowlevel
import pytest

from tests.http.test_tls import CERTIFICATE, trusting
from tilert_stream.http import ServerSettings, socket_set
from tilert_stream.http.errors import ClientGone
from tilert_stream.http.socket_input import SocketInput
from tilert_stream.http.socket_set import SelectorSet
from tilert_stream.http.sockets import receive_ready
from tilert_stream.http.tls import server_context

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from pathlib import Path

LIMIT = 60
"""Seconds after which a test that hangs fails; nothing waits for it otherwise."""

TURNS = 10
"""Turns of the loop, in which whatever is registered for a readable socket is called."""


@pytest.fixture
def pair() -> Generator[tuple[socket.socket, socket.socket], None, None]:
    """The server's end, and the client's."""
    left, right = socket.socketpair()
    with left, right:
        left.settimeout(0)
        right.settimeout(0)
        yield left, right


@pytest.fixture
def on_asyncio(anyio_backend_name: str) -> None:
    if anyio_backend_name == "trio":
        pytest.skip("a task of trio's reads a turn after it was told, and is told once more")


class Registrations(SelectorSet):
    """What the kernel is asked for, and what it tells, by the number of a file."""

    def __init__(self) -> None:
        super().__init__()
        self._log = list[tuple[int, str]]()

    def register(self, fd: int, events: int) -> None:
        self._log.append((fd, "add"))
        super().register(fd, events)

    def unregister(self, fd: int) -> None:
        self._log.append((fd, "remove"))
        super().unregister(fd)

    def poll(self, timeout: float, most: int) -> Sequence[tuple[int, int]]:
        told = super().poll(timeout, most)
        self._log.extend((fd, "call") for fd, _ in told)
        return told

    def of(self, fd: int) -> list[str]:
        return [what for number, what in self._log if number == fd]


@pytest.fixture
def registrations(monkeypatch: pytest.MonkeyPatch) -> Registrations:
    """Those of the running loop, from now on."""
    made = Registrations()
    monkeypatch.setattr(socket_set, "sets_of_loops", WeakKeyDictionary[object, object]())
    monkeypatch.setattr(socket_set, "new_set", lambda: made)
    return made


async def turn() -> None:
    for _ in range(TURNS):
        await anyio.lowlevel.checkpoint()


async def test_what_comes_is_received_and_the_end_is_empty(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    sock, client = pair
    reading = SocketInput(sock)
    assert reading.ready() is None
    with anyio.fail_after(LIMIT):
        for data in (b"one", b"two"):
            client.send(data)
            assert await reading.receive() == data
        client.send(b"three")
        assert reading.ready() == b"three"
        client.shutdown(socket.SHUT_WR)
        assert await reading.receive() == b""
    reading.close()


async def test_a_reset_is_an_error_to_whoever_waits() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        sock, _ = listener.accept()
    with sock:
        sock.settimeout(0)
        reading = SocketInput(sock)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        with anyio.fail_after(LIMIT), pytest.raises(ClientGone):
            await reading.receive()
        reading.close()


@pytest.mark.usefixtures("on_asyncio")
async def test_one_registration_lasts(
    pair: tuple[socket.socket, socket.socket], registrations: Registrations
) -> None:
    sock, client = pair
    reading = SocketInput(sock)
    with anyio.fail_after(LIMIT):
        for number in range(5):
            client.send(b"%d" % number)
            assert await reading.receive() == b"%d" % number
    assert registrations.of(sock.fileno()) == ["add", *["call"] * 5]
    reading.close()
    reading.close()
    assert registrations.of(sock.fileno()) == ["add", *["call"] * 5, "remove"]


@pytest.mark.usefixtures("on_asyncio")
async def test_what_nobody_wants_costs_one_call_and_stays_in_the_kernel(
    pair: tuple[socket.socket, socket.socket], registrations: Registrations
) -> None:
    sock, client = pair
    reading = SocketInput(sock)
    client.send(b"first")
    assert await reading.receive() == b"first"
    client.send(b"early")
    await turn()
    dropped = ["add", "call", "call", "remove"]
    assert registrations.of(sock.fileno()) == dropped
    client.send(b" bird")
    await turn()
    assert registrations.of(sock.fileno()) == dropped
    with anyio.fail_after(LIMIT):
        assert await reading.receive() == b"early bird"
    assert registrations.of(sock.fileno()) == [*dropped, "add", "call"]
    reading.close()


async def test_a_callback_that_says_false_is_not_called_again(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    sock, client = pair
    reading = SocketInput(sock)
    answers = [False, True, True]

    def look() -> bool:
        return answers.pop()

    client.send(b"x")
    reading.call(look)
    await turn()
    assert answers == []
    assert reading.ready() == b"x"
    reading.close()


async def test_a_callback_may_have_another_one_called(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    sock, client = pair
    reading = SocketInput(sock)
    log: list[object] = []

    def first() -> bool:
        log.append("first")
        reading.call(second)
        return False

    def second() -> bool:
        log.append(reading.ready())
        return True

    client.send(b"x")
    reading.call(first)
    await turn()
    assert log == ["first", b"x"]
    reading.close()


async def test_a_forgotten_callback_is_not_called(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    sock, client = pair
    reading = SocketInput(sock)
    called: list[bool] = []

    def look() -> bool:
        called.append(True)
        return True

    reading.call(look)
    reading.forget()
    reading.forget()
    client.send(b"x")
    await turn()
    assert called == []
    assert await reading.receive() == b"x"
    reading.close()


async def test_a_cancelled_receive_leaves_no_callback(
    pair: tuple[socket.socket, socket.socket], registrations: Registrations
) -> None:
    sock, client = pair
    reading = SocketInput(sock)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(reading.receive)
        await turn()
        tasks.cancel_scope.cancel()
    client.send(b"later")
    await turn()
    assert registrations.of(sock.fileno()) == ["add", "call", "remove"]
    with anyio.fail_after(LIMIT):
        assert await reading.receive() == b"later"
    reading.close()


async def test_a_closed_input_hears_nothing_of_the_next_file_of_its_number(
    registrations: Registrations,
) -> None:
    called: list[bool] = []

    def look() -> bool:
        called.append(True)
        return False

    old, old_client = socket.socketpair()
    new, new_client = socket.socketpair()
    with new, new_client, old_client:
        number = old.fileno()
        reading = SocketInput(old)
        reading.call(look)
        reading.close()
        assert registrations.of(number) == ["add", "remove"], "while the file is open still"
        old.close()
        new.settimeout(0)
        assert os.dup2(new.fileno(), number) == number
        with socket.socket(fileno=number) as reused:
            reused.settimeout(0)
            new_client.send(b"new")
            await turn()
            assert called == []
            assert registrations.of(number) == ["add", "remove"]
            again = SocketInput(reused)
            with anyio.fail_after(LIMIT):
                assert await again.receive() == b"new"
            again.close()


class TLSEnd:
    """A client whose records are cut as a test likes."""

    def __init__(self) -> None:
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = trusting().wrap_bio(self.incoming, self.outgoing, server_hostname="127.0.0.1")

    def shake_hands(self, client: socket.socket, server: ssl.SSLSocket) -> None:
        client_done = server_done = False
        while not (client_done and server_done):
            if not client_done:
                try:
                    self.tls.do_handshake()
                    client_done = True
                except ssl.SSLWantReadError:
                    pass
                client.send(self.outgoing.read())
            if not server_done:
                try:
                    server.do_handshake()
                    server_done = True
                except ssl.SSLWantReadError:
                    pass
                self.incoming.write(receive_ready(client) or b"")


async def test_a_tls_record_that_comes_in_pieces(
    pair: tuple[socket.socket, socket.socket], tmp_path: Path
) -> None:
    plain, client = pair
    pem = tmp_path / "server.pem"
    CERTIFICATE.private_key_and_cert_chain_pem.write_to_path(str(pem))
    settings = ServerSettings(ssl_certfile=str(pem))
    context = await server_context(settings)
    assert context is not None
    end = TLSEnd()
    with context.wrap_socket(plain, server_side=True, do_handshake_on_connect=False) as sock:
        end.shake_hands(client, sock)
        reading = SocketInput(sock)
        received: list[bytes] = []

        async def receive() -> None:
            received.append(await reading.receive())

        with anyio.fail_after(LIMIT):
            for data in (b"one", b"two"):
                end.tls.write(data)
                record = end.outgoing.read()
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(receive)
                    client.send(record[:7])
                    await turn()
                    client.send(record[7:])
        assert received == [b"one", b"two"]
        reading.close()
