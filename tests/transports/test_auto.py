"""Which transport joins two sides, and that the regions are the same ones through each."""

from __future__ import annotations

import pytest

from tests.transports.kit import BACKENDS, SOON, crc, fill
from tilert_transports.abc import Transport
from tilert_transports.auto import AutoTransport, choose, make_auto
from tilert_transports.bundle import Bundle, Part
from tilert_transports.errors import HandshakeMismatch, RegionInvalid
from tilert_transports.host import HOST_ID
from tilert_transports.nixl_binding import installed
from tilert_transports.plan import Plan
from tilert_transports.shm import ShmTransport
from tilert_transports.tcp import TcpTransport

HERE, THERE = "a" * 32, "b" * 32
NBYTES = 4096


def side(host: str, *names: str) -> Bundle:
    return Bundle("0" * 32, host, {name: Part(b"", {}) for name in names})


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        (side(HERE, "shm", "nixl", "tcp"), side(HERE, "shm", "nixl", "tcp"), "shm"),
        (side(HERE, "shm", "nixl", "tcp"), side(THERE, "shm", "nixl", "tcp"), "nixl"),
        (side(HERE, "shm", "nixl", "tcp"), side(THERE, "shm", "tcp"), "tcp"),
        (side(HERE, "shm", "tcp"), side(THERE, "shm", "nixl", "tcp"), "tcp"),
        (side(HERE, "nixl", "tcp"), side(HERE, "shm", "tcp"), "tcp"),
    ],
)
def test_the_best_that_both_have(ours: Bundle, theirs: Bundle, expected: str) -> None:
    assert choose(ours, theirs) == expected
    assert choose(theirs, ours) == expected


def test_nothing_in_common() -> None:
    with pytest.raises(HandshakeMismatch, match="ours are nixl, the peer's shm, tcp"):
        choose(side(HERE, "nixl"), side(HERE, "shm", "tcp"))
    with pytest.raises(HandshakeMismatch, match="ours are shm, the peer's shm"):
        choose(side(HERE, "shm"), side(THERE, "shm"))


@pytest.mark.parametrize(
    ("parts", "expected"),
    [([ShmTransport, TcpTransport], "shm"), ([TcpTransport], "tcp")],
)
async def test_writing_through_either(
    parts: list[type[ShmTransport | TcpTransport]], expected: str
) -> None:
    reader = AutoTransport([ShmTransport(), TcpTransport()])
    writer = AutoTransport([part() for part in parts])
    # The parts number their regions themselves: shm has one less that peers can write to.
    await reader.register(bytearray(10))
    target = await reader.allocate(NBYTES)
    source = await writer.allocate(NBYTES)
    fill(writer.view(source), 2)
    peer = await writer.connect(reader.card(), timeout=SOON)
    assert peer.transport == expected
    await writer.write(peer, source, target, Plan.whole(NBYTES), deadline=float("inf"))
    assert crc(reader.view(target)) == crc(writer.view(source))
    await writer.aclose()
    await reader.aclose()


async def test_a_buffer_that_no_part_can_use() -> None:
    transport = AutoTransport([ShmTransport(), TcpTransport()])
    with pytest.raises(RegionInvalid, match="no transport can use the buffer"):
        await transport.register("text")  # type: ignore[arg-type]  # that is the test
    await transport.aclose()


@pytest.mark.parametrize("anyio_backend", BACKENDS[1:])
async def test_made_by_name_it_has_all_that_is_installed() -> None:
    transport = make_auto()
    region = await transport.allocate(NBYTES)
    bundle = Bundle.decode(transport.card())
    assert bundle.host == HOST_ID
    assert set(bundle.parts) == {"shm", "tcp"} | ({"nixl"} if installed() else set())
    assert transport.caps.device_memory == installed()
    assert not transport.caps.zero_copy
    assert len(transport.view(region)) == NBYTES
    assert isinstance(transport, Transport)
    await transport.aclose()
