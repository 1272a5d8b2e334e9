from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilert_stream.errors import Busy, InvalidRequest, NotReady
from tilert_stream.nodes.hand_over.staging import Piece, StagingMemory

KIB = 1024


def memory(nbytes: int = 4 * KIB) -> StagingMemory:
    return StagingMemory(memoryview(bytearray(nbytes)))


@given(
    st.integers(1, 4000),
    st.lists(st.tuples(st.booleans(), st.integers(1, 1500), st.integers(0, 9))),
)
def test_pieces_never_overlap_and_all_comes_back(
    size: int, turns: list[tuple[bool, int, int]]
) -> None:
    staging = memory(size)
    held: list[Piece] = []
    for take, nbytes, which in turns:
        if take:
            try:
                piece = staging.take(nbytes, timeout=0)
            except (Busy, InvalidRequest):
                continue
            assert piece.memory.nbytes == nbytes
            for other in held:
                assert (
                    piece.offset + nbytes <= other.offset
                    or other.offset + other.memory.nbytes <= piece.offset
                )
            held.append(piece)
        elif held:
            staging.give_back(held.pop(which % len(held)))
    for piece in held:
        staging.give_back(piece)
    assert staging.free_bytes == size
    assert staging.take(size, timeout=0).offset == 0


def test_a_piece_is_the_memory_at_its_offset() -> None:
    region = memoryview(bytearray(KIB))
    staging = StagingMemory(region)
    staging.take(10, timeout=0)
    piece = staging.take(3, timeout=0)
    piece.memory[:] = b"abc"
    assert bytes(region[piece.offset : piece.offset + 3]) == b"abc"


def test_who_waits_gets_what_is_given_back() -> None:
    staging = memory()
    first = staging.take(4 * KIB, timeout=0)
    taken: list[Piece] = []
    waiter = threading.Thread(target=lambda: taken.append(staging.take(KIB, timeout=60)))
    waiter.start()
    staging.give_back(first)
    waiter.join()
    assert taken[0].memory.nbytes == KIB


def test_without_room_in_time_it_is_busy() -> None:
    staging = memory()
    staging.take(3 * KIB, timeout=0)
    with pytest.raises(Busy, match="no 2048 bytes of staging memory came free within 0 s"):
        staging.take(2 * KIB, timeout=0)


def test_what_can_never_fit_is_refused_at_once() -> None:
    with pytest.raises(InvalidRequest, match="has 5000 bytes, the staging memory 4096; raise"):
        memory().take(5000, timeout=60)


def test_closing_wakes_who_waits() -> None:
    staging = memory()
    staging.take(4 * KIB, timeout=0)
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            staging.take(1, timeout=60)
        except NotReady as error:
            errors.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    staging.close()
    waiter.join()
    assert len(errors) == 1
