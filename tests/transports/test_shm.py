"""What is shared memory's own: who may map it, and that it cannot shrink."""

from __future__ import annotations

import os

import orjson
import pytest

from tests.transports.kit import SOON, connected, crc
from tilert_transports.errors import HandshakeMismatch, PeerLost, RegionInvalid
from tilert_transports.plan import Plan
from tilert_transports.shm_memory import SharedMemory, map_shared

NBYTES = 8192


def test_a_mapping_is_the_same_memory() -> None:
    memory = SharedMemory(NBYTES)
    mapped = map_shared(memory.fd, NBYTES)
    mapped.view[17] = 42
    assert memory.view[17] == 42
    memory.close_fd()
    memory.close_fd()
    mapped.view[18] = 43
    assert memory.view[18] == 43


def test_no_side_can_change_the_size() -> None:
    memory = SharedMemory(NBYTES)
    for size in (0, NBYTES * 2):
        with pytest.raises(PermissionError):
            os.ftruncate(memory.fd, size)
    memory.close_fd()


def test_memory_that_could_shrink_is_not_mapped() -> None:
    fd = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, NBYTES)
    with pytest.raises(HandshakeMismatch, match="F_SEAL_SHRINK"):
        map_shared(fd, NBYTES)
    os.close(fd)


def test_memory_that_is_too_small_is_not_mapped() -> None:
    memory = SharedMemory(NBYTES)
    with pytest.raises(HandshakeMismatch, match="has 8192 bytes"):
        map_shared(memory.fd, NBYTES + 1)
    memory.close_fd()


async def test_a_registered_buffer_cannot_be_a_target() -> None:
    async with connected("shm", NBYTES) as pair:
        target = await pair.reader.register(bytearray(NBYTES))
        peer = await pair.writer.connect(pair.reader.card(), timeout=SOON)
        assert set(peer.regions) == {pair.target.id}
        with pytest.raises(RegionInvalid, match="is not writable at the peer"):
            await pair.writer.write(peer, pair.source, target, Plan.whole(1), deadline=float("inf"))


async def test_a_wrong_secret_is_refused() -> None:
    async with connected("shm", NBYTES) as pair:
        fields = orjson.loads(pair.reader.card())
        fields["details"]["secret"] = "00" * 16
        with pytest.raises(PeerLost, match="refused the card"):
            await pair.writer.connect(orjson.dumps(fields), timeout=SOON)
        for secret in ("00", "no hex digits"):
            fields["details"]["secret"] = secret
            with pytest.raises(HandshakeMismatch, match="needs 32 hex digits"):
                await pair.writer.connect(orjson.dumps(fields), timeout=SOON)


async def test_another_host_is_out_of_reach() -> None:
    async with connected("shm", NBYTES) as pair:
        fields = orjson.loads(pair.reader.card())
        fields["details"]["host"] = "f" * 32
        with pytest.raises(HandshakeMismatch, match="one host and network namespace, use tcp"):
            await pair.writer.connect(orjson.dumps(fields), timeout=SOON)


@pytest.mark.parametrize("regions", [[[0, NBYTES + 1]], [[5, NBYTES]]])
async def test_a_card_that_promises_what_is_not_there(regions: list[list[int]]) -> None:
    async with connected("shm", NBYTES) as pair:
        fields = orjson.loads(pair.reader.card())
        fields["regions"] = regions
        with pytest.raises(HandshakeMismatch, match="the peer's card gives region"):
            await pair.writer.connect(orjson.dumps(fields), timeout=SOON)
        await pair.write(Plan.whole(NBYTES))
        assert crc(pair.landed) == crc(pair.sent)
