"""What is TCP's own: strangers at the door, addresses, and what goes over the wire."""

from __future__ import annotations

import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.transports.kit import MIB, SOON, connected, crc, make
from tilert_transports.card import Card
from tilert_transports.errors import HandshakeMismatch, PeerLost, TransportUnavailable
from tilert_transports.plan import Plan
from tilert_transports.sockets import advance
from tilert_transports.tcp import TcpTransport
from tilert_transports.tcp_wire import (
    ANSWER,
    DONE,
    HELLO,
    MAGIC,
    MAX_DESCRIPTORS,
    ROW,
    WRITE,
    Status,
)

NBYTES = 1000


class Stranger:
    """A bare socket at a transport's door."""

    def __init__(self, card: bytes) -> None:
        self.card = Card.decode(card, "tcp")
        address = (self.card.text("host"), self.card.number("port"))
        self.sock = socket.create_connection(address, timeout=SOON)

    def greet(self, *, secret: bytes | None = None, incarnation: bytes | None = None) -> Status:
        self.sock.sendall(
            HELLO.pack(
                MAGIC,
                incarnation or bytes.fromhex(self.card.incarnation),
                secret or self.card.secret(16),
            )
        )
        _, status, _ = ANSWER.unpack(self.sock.recv(ANSWER.size, socket.MSG_WAITALL))
        return Status(status)

    def hears(self, nbytes: int) -> bytes:
        """The next bytes, or nothing if the door is shut."""
        try:
            return self.sock.recv(nbytes)
        except ConnectionResetError:
            return b""


@contextmanager
def stranger(card: bytes) -> Generator[Stranger]:
    visitor = Stranger(card)
    with visitor.sock:
        yield visitor


@pytest.mark.parametrize(
    "hello",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" + b" " * 40,
        HELLO.pack(b"tilertK0", bytes(16), bytes(16)),
    ],
)
async def test_a_foreign_protocol_is_hung_up_on(hello: bytes) -> None:
    async with connected("tcp", NBYTES) as pair:
        with stranger(pair.reader.card()) as visitor:
            visitor.sock.sendall(hello)
            assert visitor.hears(1) == b""
        await pair.write(Plan.whole(NBYTES))
        assert crc(pair.landed) == crc(pair.sent)


async def test_a_visitor_that_leaves_in_its_hello() -> None:
    async with connected("tcp", NBYTES) as pair:
        with stranger(pair.reader.card()) as visitor:
            visitor.sock.sendall(MAGIC)
        await pair.write(Plan.whole(NBYTES))


async def test_a_wrong_secret_is_denied() -> None:
    async with connected("tcp", NBYTES) as pair:
        with stranger(pair.reader.card()) as visitor:
            assert visitor.greet(secret=bytes(16)) is Status.DENIED
            assert visitor.hears(1) == b""
        fields = orjson.loads(pair.reader.card())
        fields["details"]["secret"] = "00" * 16
        with pytest.raises(HandshakeMismatch, match="refused the card's secret"):
            await pair.writer.connect(orjson.dumps(fields), timeout=SOON)


async def test_another_life_is_told() -> None:
    async with connected("tcp", NBYTES) as pair:
        with stranger(pair.reader.card()) as visitor:
            assert visitor.greet(incarnation=bytes(16)) is Status.STALE


@pytest.mark.parametrize(
    ("header", "rows"),
    [
        (WRITE.pack(0, 1, 1), [(NBYTES, 1)]),
        (WRITE.pack(0, 2, NBYTES + 1), [(0, NBYTES), (2**64 - 1, 1)]),
        (WRITE.pack(7, 1, 1), [(0, 1)]),
        (WRITE.pack(0, 1, 99), [(0, 98)]),
        (WRITE.pack(0, 0, 0), []),
        (WRITE.pack(0, MAX_DESCRIPTORS + 1, 1), []),
    ],
    ids=["past-the-end", "overflow", "unknown-region", "wrong-sum", "no-rows", "too-many-rows"],
)
async def test_a_write_out_of_range_is_refused_by_the_reader_too(
    header: bytes, rows: list[tuple[int, int]]
) -> None:
    async with connected("tcp", NBYTES) as pair:
        with stranger(pair.reader.card()) as visitor:
            assert visitor.greet() is Status.OK
            visitor.sock.sendall(header + b"".join(ROW.pack(*row) for row in rows))
            answer = visitor.sock.recv(DONE.size, socket.MSG_WAITALL)
            assert DONE.unpack(answer) == (Status.OUT_OF_RANGE, 0)
            assert visitor.hears(1) == b""
        assert not any(pair.landed)
        await pair.write(Plan.whole(NBYTES))


async def test_a_writer_that_vanishes_in_the_middle_of_a_write() -> None:
    async with connected("tcp", NBYTES) as pair:
        with stranger(pair.reader.card()) as visitor:
            visitor.greet()
            visitor.sock.sendall(WRITE.pack(0, 1, 500) + ROW.pack(0, 500) + b"\xff" * 100)
            visitor.sock.shutdown(socket.SHUT_WR)
            assert visitor.hears(1) == b""
        assert bytes(pair.landed[:500]) == b"\xff" * 100 + bytes(400)


def answering(data: bytes) -> tuple[socket.socket, threading.Thread]:
    """A server that says ``data`` to its first visitor."""
    server = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        visitor, _ = server.accept()
        with visitor:
            visitor.recv(HELLO.size, socket.MSG_WAITALL)
            visitor.sendall(data)

    thread = threading.Thread(target=answer)
    thread.start()
    return server, thread


def card_for(port: int) -> bytes:
    details: dict[str, str | int] = {"host": "127.0.0.1", "port": port, "secret": "00" * 16}
    return Card("tcp", "ab" * 16, {0: NBYTES}, details).encode()


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", HandshakeMismatch),
        (ANSWER.pack(MAGIC, 77, bytes(16)), HandshakeMismatch),
        (MAGIC, PeerLost),
        (b"", PeerLost),
    ],
    ids=["http", "unknown-status", "cut", "silent"],
)
async def test_another_program_listens_there(
    data: bytes, expected: type[HandshakeMismatch | PeerLost]
) -> None:
    server, thread = answering(data)
    writer = TcpTransport()
    with server, pytest.raises(expected):
        await writer.connect(card_for(server.getsockname()[1]), timeout=SOON)
    thread.join(SOON)
    await writer.aclose()


@pytest.mark.parametrize("port", [0, 65536])
async def test_a_port_that_is_none(port: int) -> None:
    writer = TcpTransport()
    with pytest.raises(HandshakeMismatch, match=f"port is {port}, needs 1 to 65535"):
        await writer.connect(card_for(port), timeout=SOON)
    await writer.aclose()


async def test_a_name_that_nobody_knows() -> None:
    writer = TcpTransport()
    fields = orjson.loads(card_for(80))
    fields["details"]["host"] = "no-such-host.invalid"
    with pytest.raises(PeerLost, match="is not known here"):
        await writer.connect(orjson.dumps(fields), timeout=SOON)
    await writer.aclose()


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
async def test_one_listener_takes_ipv4_and_ipv6(address: str) -> None:
    reader, writer = TcpTransport(host="::", advertise=address), make("tcp")
    target = await reader.allocate(NBYTES)
    source = await writer.register(bytearray(b"kv" * 500))
    peer = await writer.connect(reader.card(), timeout=SOON)
    await writer.write(peer, source, target, Plan.whole(NBYTES), deadline=float("inf"))
    assert reader.view(target) == b"kv" * 500
    await writer.aclose()
    await reader.aclose()


async def test_the_card_names_an_address_that_can_be_dialled() -> None:
    for host, advertise, expected in (
        ("127.0.0.1", None, "127.0.0.1"),
        ("0.0.0.0", None, socket.gethostname()),
        ("0.0.0.0", "10.1.2.3", "10.1.2.3"),
    ):
        transport = TcpTransport(host=host, advertise=advertise)
        card = Card.decode(transport.card(), "tcp")
        assert card.text("host") == expected
        assert Card.decode(transport.card(), "tcp") == card
        await transport.aclose()


def test_the_host_to_listen_on_is_an_address() -> None:
    with pytest.raises(TransportUnavailable, match="host is 'localhost'; an IP address"):
        TcpTransport(host="localhost")


async def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        transport = TcpTransport(port=port)
        with pytest.raises(TransportUnavailable, match=f"cannot listen on 127.0.0.1 port {port}"):
            transport.card()
        await transport.aclose()


async def test_uvloop_too(anyio_backend: object) -> None:
    async with connected("tcp", 8 * MIB) as pair:
        await pair.write(Plan.whole(8 * MIB))
        assert crc(pair.landed) == crc(pair.sent)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=9), st.data())
def test_a_vector_is_sent_whole_in_pieces_of_any_size(
    sizes: list[int], data: st.DataObject
) -> None:
    whole = bytes(range(sum(sizes)))
    ends = [sum(sizes[: n + 1]) for n in range(len(sizes))]
    views = [memoryview(whole)[end - size : end] for end, size in zip(ends, sizes, strict=True)]
    begin, sent = 0, b""
    while begin < len(views):
        rest = b"".join(views[begin:])
        taken = data.draw(st.integers(1, len(rest)))
        sent += rest[:taken]
        begin = advance(views, begin, taken)
    assert sent == whole
