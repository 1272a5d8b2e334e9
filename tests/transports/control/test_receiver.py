from __future__ import annotations

import pytest

from tilert_stream.errors import Busy
from tilert_transports.control.errors import (
    GrantGone,
    OutOfOrder,
    PeerLost,
)
from tilert_transports.control.messages import (
    Abort,
    Commit,
    Grant,
    Ping,
    Pong,
    Progress,
    Released,
)
from tilert_transports.control.reservation import Failed, Granted, Landed, Progressed

from .ledger import DecodeSide


def failure(side: DecodeSide) -> Failed:
    (event,) = side.heard()
    assert isinstance(event, Failed)
    return event


def test_a_hand_off() -> None:
    side = DecodeSide()
    granted = side.reserve("a1")
    assert granted == Granted("a1", "d-1", 1, granted.region, 30)
    assert side.gauges() == (2, 1, 0, 0, 0, 0)
    assert side.granted(granted) == Grant(
        "a1", 1, 0, granted.region.id, granted.region.offset, granted.region.nbytes, 30
    )
    assert side.gauges() == (2, 0, 1, 0, 0, 0)
    side.receiver.receive(0, Progress(1, 3))
    side.receiver.receive(0, Progress(1, 9))
    assert side.heard() == [Progressed(1, 0, 3), Progressed(1, 0, 9)]
    side.receiver.receive(0, Commit(1, 4096, checksum=77))
    landed = Landed(1, "a1", granted.region, 900, 42, {0: 77}, 4096)
    assert side.heard() == [landed]
    assert side.said() == [(0, Released(1))]
    assert side.gauges() == (2, 0, 0, 1, 0, 0)
    assert side.reservations.take(1) == landed
    assert side.gauges() == (2, 0, 0, 0, 1, 0)
    side.reservations.release(1, "imported")
    assert side.idle
    assert side.said() == []
    assert side.heard() == []


def test_a_hand_off_of_two_ranks_is_complete_with_the_second() -> None:
    side = DecodeSide(ranks=(0, 1))
    granted = side.reserve()
    side.granted(granted, peer=0, rank=0)
    side.granted(granted, peer=1, rank=1, nbytes=8192)
    side.receiver.receive(1, Commit(1, 8192, checksum=5))
    assert side.said() == [(1, Released(1))]
    assert side.heard() == []
    side.receiver.receive(0, Commit(1, 4096))
    assert side.heard() == [Landed(1, "a1", granted.region, 900, 42, {1: 5}, 12288)]


def test_a_writer_may_leave_once_it_has_committed() -> None:
    side = DecodeSide()
    side.granted(side.reserve())
    side.receiver.receive(0, Commit(1, 4096))
    side.heard()
    side.receiver.disconnect(0)
    assert side.heard() == []
    assert side.reservations.take(1).generation == 1


def test_kv_02_a_late_commit_of_an_earlier_generation_completes_nothing() -> None:
    side = DecodeSide(ranks=(0, 1))
    first = side.reserve("a1")
    side.granted(first, peer=0, rank=0)
    side.reservations.release(first.generation, "the client left")
    assert side.said() == [(0, Abort(1, "the client left", unwanted=True))]
    second = side.reserve("a1")
    side.granted(second, peer=1, rank=1)
    side.receiver.receive(1, Commit(2, 4096))
    side.receiver.receive(0, Commit(1, 4096))
    assert side.receiver.statistics.stale == 1
    assert side.heard() == []
    with pytest.raises(OutOfOrder):
        side.reservations.take(2)
    side.receiver.receive(0, Commit(1, 4096))
    assert side.receiver.statistics.stale == 2
    side.granted(second, peer=0, rank=0)
    side.receiver.receive(0, Commit(2, 4096))
    assert isinstance(side.heard()[0], Landed)


def test_a_commit_of_one_peer_is_never_anothers() -> None:
    side = DecodeSide()
    side.granted(side.reserve())
    side.receiver.receive(1, Commit(1, 4096))
    assert side.heard() == []
    assert side.receiver.statistics.stale == 1
    assert side.gauges() == (2, 0, 1, 0, 0, 0)


@pytest.mark.parametrize("message", [Progress(9, 1), Commit(9, 1), Abort(9, "x"), Released(9)])
def test_a_message_for_no_generation_is_ignored_and_counted(
    message: Progress | Commit | Abort | Released,
) -> None:
    side = DecodeSide()
    side.receiver.receive(0, message)
    assert side.said() == []
    assert side.receiver.statistics.stale == 1


def test_pd_14_a_sender_that_gives_up_fails_the_request_with_its_cause() -> None:
    side = DecodeSide(ranks=(0, 1))
    granted = side.reserve()
    side.granted(granted, peer=0, rank=0)
    side.granted(granted, peer=1, rank=1)
    side.receiver.receive(0, Commit(1, 4096))
    side.said()
    side.receiver.receive(1, Abort(1, "preempted", settled=True))
    assert side.said() == [(1, Released(1))]
    failed = failure(side)
    assert failed.error.message == "prefill node prefill-1 gave up: preempted"
    assert failed.error.status == 502
    assert side.idle
    with pytest.raises(GrantGone):
        side.reservations.take(1)
    assert side.receiver.statistics.aborted == 1


def test_an_abort_that_is_not_settled_quarantines_until_released() -> None:
    side = DecodeSide()
    side.granted(side.reserve())
    side.receiver.receive(0, Abort(1, "timed out", settled=False))
    assert side.said() == [(0, Abort(1, "prefill node prefill-0 gave up: timed out"))]
    assert failure(side).generation == 1
    assert side.gauges() == (2, 0, 0, 0, 0, 1)
    side.clock.now += 10_000
    side.reservations.expire()
    assert side.gauges() == (2, 0, 0, 0, 0, 1), "its writer is there and has not stopped"
    side.receiver.receive(0, Released(1))
    assert side.idle
    assert side.said() == []


LAST_WORDS = [Released(1), Commit(1, 4096), Abort(1, "stopped", settled=True)]


@pytest.mark.parametrize("word", LAST_WORDS)
def test_kv_07_a_region_under_a_live_writer_is_used_again_only_after_its_last_word(
    word: Released | Commit | Abort,
) -> None:
    side = DecodeSide()
    granted = side.reserve()
    side.granted(granted)
    side.clock.now += 30
    side.reservations.expire()
    assert "never came" in failure(side).error.message
    ((peer, abort),) = side.said()
    assert (peer, type(abort)) == (0, Abort)
    side.clock.now += 10_000
    side.reservations.expire()
    taken = {side.reserve(name).region for name in "bc"}
    assert granted.region not in taken
    with pytest.raises(Busy):
        side.reserve("d")
    side.receiver.receive(0, word)
    assert side.said() == []
    assert side.reserve("d").region == granted.region


def test_kv_07_regions_of_senders_that_are_gone_age_out() -> None:
    side = DecodeSide(ranks=(0, 1))
    granted = side.reserve()
    side.granted(granted, peer=0, rank=0)
    side.granted(granted, peer=1, rank=1)
    side.receiver.disconnect(0)
    failed = failure(side)
    assert isinstance(failed.error, PeerLost)
    assert "prefill-0 has gone" in failed.error.message
    assert side.said() == [(1, Abort(1, failed.error.message))]
    side.clock.now += 20
    side.receiver.disconnect(1)
    assert side.heard() == []
    assert side.gauges() == (2, 0, 0, 0, 0, 1)
    assert side.reservations.next_deadline == 160
    side.clock.now = 160
    side.reservations.expire()
    assert side.gauges() == (2, 0, 0, 0, 0, 1), "rank 1 left later"
    assert side.reservations.next_deadline == 180
    side.clock.now = 180
    side.reservations.expire()
    assert side.idle
    assert side.receiver.statistics.lost == 1


def test_the_end_of_a_connection_fails_all_that_it_was_writing_and_nothing_else() -> None:
    side = DecodeSide(slots=3)
    for generation, (name, peer) in enumerate((("a", 0), ("b", 0), ("c", 1)), start=1):
        side.granted(side.reserve(name), peer=peer)
        if name == "b":
            side.receiver.receive(0, Commit(generation, 4096))
    side.said()
    side.heard()
    side.receiver.disconnect(0)
    assert failure(side).request == "a"
    assert side.gauges() == (2, 0, 1, 1, 0, 1)


def test_a_commit_of_fewer_bytes_than_claimed_fails_the_request() -> None:
    side = DecodeSide()
    side.granted(side.reserve())
    side.receiver.receive(0, Commit(1, 4095))
    assert side.said() == [(0, Abort(1, "rank 0 wrote 4095 of 4096 bytes"))]
    assert failure(side).error.message == "rank 0 wrote 4095 of 4096 bytes"
    assert side.idle


def test_a_writer_that_lets_go_without_a_commit_has_given_up() -> None:
    side = DecodeSide()
    side.granted(side.reserve())
    side.receiver.receive(0, Released(1))
    assert "stopped before it committed" in failure(side).error.message
    assert side.said() == [(0, Released(1))]
    assert side.idle


@pytest.mark.parametrize("word", [Abort(1, "x"), Abort(1, "x", settled=False), Released(1)])
def test_nothing_said_after_a_commit_changes_what_has_landed(word: Abort | Released) -> None:
    side = DecodeSide()
    side.granted(side.reserve())
    side.receiver.receive(0, Commit(1, 4096))
    side.said()
    side.receiver.receive(0, word)
    side.receiver.receive(0, Progress(1, 9))
    assert side.receiver.statistics.stale == 2
    assert side.said() == []
    assert side.reservations.take(1).request == "a1"


def test_progress_never_goes_back() -> None:
    side = DecodeSide()
    side.granted(side.reserve())
    for planes in (5, 5, 3, 6):
        side.receiver.receive(0, Progress(1, planes))
    assert side.heard() == [Progressed(1, 0, 5), Progressed(1, 0, 6)]
    side.reservations.release(1, "left")
    side.receiver.receive(0, Progress(1, 7))
    assert side.heard() == []
    assert side.receiver.statistics.stale == 1


def test_a_ping_renews_what_its_sender_is_writing() -> None:
    side = DecodeSide(slots=2)
    for name, peer in (("a", 0), ("b", 1)):
        side.granted(side.reserve(name), peer=peer)
    side.clock.now += 20
    side.receiver.receive(0, Ping(5))
    assert side.said() == [(0, Pong(5))]
    side.clock.now += 10
    side.reservations.expire()
    assert failure(side).request == "b"
    side.receiver.receive(0, Pong(1))
    assert side.reservations.next_deadline == 150


def test_what_only_a_decode_node_may_say_closes_the_connection() -> None:
    side = DecodeSide()
    grant = side.granted(side.reserve())
    with pytest.raises(OutOfOrder, match="prefill-0 sends a GRANT; only a decode node grants"):
        side.receiver.receive(0, grant)
