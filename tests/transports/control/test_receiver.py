from __future__ import annotations

import pytest

from tilert_stream.errors import Busy, ContextLengthExceeded
from tilert_transports.control.errors import (
    GrantGone,
    HandOffFailed,
    OutOfOrder,
    PeerLost,
    RequestInUse,
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

from .ledger import MAX_SEQ_LEN, DecodeSide, claim_of, other


def failure(side: DecodeSide) -> Failed:
    (event,) = side.heard()
    assert isinstance(event, Failed)
    return event


# --- the good way ------------------------------------------------------------------------------


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
    landed = Landed(1, "a1", granted.region, 900, 42, {0: 77})
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
    assert side.heard() == [Landed(1, "a1", granted.region, 900, 42, {1: 5})]


def test_a_writer_may_leave_once_it_has_committed() -> None:
    side = DecodeSide()
    side.granted(side.reserve())
    side.receiver.receive(0, Commit(1, 4096))
    side.heard()
    side.receiver.disconnect(0)
    assert side.heard() == []
    assert side.reservations.take(1).generation == 1


# --- reserving ---------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [MAX_SEQ_LEN + 1, 0, -1])
def test_kv_05_a_length_that_never_fits_is_refused_at_the_reservation(tokens: int) -> None:
    side = DecodeSide()
    with pytest.raises(ContextLengthExceeded, match=f"{tokens} tokens.* holds 1 to 8192") as caught:
        side.reserve(max_tokens=tokens)
    assert caught.value.status == 400
    assert side.idle
    side.reserve(max_tokens=MAX_SEQ_LEN)


def test_when_all_regions_are_in_use_it_says_how_many_are_quarantined() -> None:
    side = DecodeSide()
    for name in "abc":
        side.granted(side.reserve(name))
    side.reservations.release(2, "left")
    with pytest.raises(Busy, match=r"all 3 landing regions are in use \(1 quarantined\)") as caught:
        side.reserve("d")
    assert caught.value.retry_after == 1


def test_kv_11_a_live_request_id_is_not_reserved_twice() -> None:
    side = DecodeSide()
    granted = side.reserve("a1")
    with pytest.raises(RequestInUse, match="request a1 already holds"):
        side.reserve("a1")
    assert side.gauges() == (2, 1, 0, 0, 0, 0)
    side.granted(granted)
    side.reservations.release(granted.generation, "left")
    again = side.reserve("a1")
    assert again.generation == 2
    assert again.region != granted.region, "the first is quarantined"


def test_a_lease_is_renewed_until_the_longest_life_ends() -> None:
    side = DecodeSide()
    side.reserve()
    for _ in range(23):
        side.clock.now += 25
        side.reservations.expire()
        side.reservations.renew(1)
    assert side.clock.now == 675
    assert side.reservations.next_deadline == 700
    side.clock.now = 700
    side.reservations.expire()
    assert isinstance(failure(side).error, GrantGone)
    with pytest.raises(GrantGone, match="has expired or was released"):
        side.reservations.renew(1)
    assert side.idle


def test_a_reservation_that_nobody_renews_expires() -> None:
    side = DecodeSide()
    assert side.reservations.next_deadline is None
    side.reserve("a")
    side.clock.now += 10
    side.reserve("b")
    assert side.reservations.next_deadline == 130
    side.clock.now = 129.9
    side.reservations.expire()
    assert side.heard() == []
    side.clock.now = 130
    side.reservations.expire()
    failed = failure(side)
    assert (failed.generation, failed.request) == (1, "a")
    assert "never came" in failed.error.message
    assert side.gauges() == (2, 1, 0, 0, 0, 0)
    assert side.reservations.statistics().expired == 1


def test_a_cache_that_nobody_takes_expires_and_one_that_was_taken_does_not() -> None:
    side = DecodeSide()
    for name, generation in (("a", 1), ("b", 2)):
        side.granted(side.reserve(name))
        side.receiver.receive(0, Commit(generation, 4096))
    side.heard()
    side.reservations.take(2)
    side.clock.now += 1000
    side.reservations.expire()
    failed = failure(side)
    assert failed.generation == 1
    assert "nobody took it" in failed.error.message
    assert side.gauges() == (2, 0, 0, 0, 1, 0)
    assert side.reservations.next_deadline is None


def test_kv_09_a_cache_is_taken_once() -> None:
    side = DecodeSide()
    side.granted(side.reserve())
    with pytest.raises(OutOfOrder, match="has not landed yet"):
        side.reservations.take(1)
    side.receiver.receive(0, Commit(1, 4096))
    side.reservations.take(1)
    for generation in (1, 2, 99):
        with pytest.raises(GrantGone, match=r"taken before; reserve again") as caught:
            side.reservations.take(generation)
        assert caught.value.status == 410
    side.reservations.release(1, "imported")
    with pytest.raises(GrantGone):
        side.reservations.take(1)


def test_release_is_idempotent_in_every_state() -> None:
    side = DecodeSide()
    granted = side.reserve()
    for _ in range(2):
        side.reservations.release(granted.generation, "left")
    side.reservations.release(99, "never reserved")
    assert side.idle
    assert side.heard() == []


def test_a_holder_that_releases_another_when_told_of_a_failure() -> None:
    side = DecodeSide()

    def tell(event: object) -> None:
        side.told.append(event)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - the events are the receiver's own
        side.reservations.release(2, "the other leg failed")

    side.reservations.tell = tell
    side.reserve("a")
    side.reserve("b")
    side.clock.now += 100
    side.reservations.expire()
    assert failure(side).generation == 1
    assert side.idle


# --- claims ------------------------------------------------------------------------------------


def test_kv_01_a_claim_is_let_in_only_if_all_of_it_fits() -> None:
    side = DecodeSide()
    claim = claim_of(side.reserve("a1"))
    wrong = [
        other(claim, request="b2"),
        other(claim, incarnation="d-0"),
        other(claim, generation=2),
        other(claim, rank=7),
    ]
    for number, bad in enumerate(wrong, start=1):
        side.receiver.receive(0, bad)
        ((peer, answer),) = side.said()
        assert peer == 0
        assert isinstance(answer, Abort)
        assert answer.generation == bad.generation
        assert side.receiver.statistics.refused == number
        assert side.gauges() == (2, 1, 0, 0, 0, 0)
    assert side.heard() == [], "the right sender can still come"
    side.receiver.receive(0, claim)
    ((_, grant),) = side.said()
    assert isinstance(grant, Grant)


def test_kv_03_an_unknown_rank_is_refused() -> None:
    side = DecodeSide(ranks=(0, 1))
    side.claim(side.reserve(), rank=7)
    ((_, answer),) = side.said()
    assert answer == Abort(1, "rank 7 sends nothing in this layout; ranks 0, 1 do")


def test_kv_03_a_duplicate_commit_is_ignored_and_a_missing_rank_is_missing() -> None:
    side = DecodeSide(ranks=(0, 1))
    granted = side.reserve()
    side.granted(granted, peer=0, rank=0)
    for _ in range(2):
        side.receiver.receive(0, Commit(1, 4096))
    assert side.receiver.statistics.duplicates == 1
    assert side.heard() == []
    side.claim(granted, peer=1, rank=0)
    assert side.said()[-1] == (
        1,
        Abort(1, "rank 0 of this grant was claimed by another connection"),
    )
    with pytest.raises(OutOfOrder, match="has not landed yet"):
        side.reservations.take(1)
    side.clock.now += 30
    side.reservations.expire()
    assert failure(side).error.message == "the grant of a1 expired: its KV cache never came"
    assert side.idle, "rank 0 has committed, so nobody can write to it any more"


def test_a_generation_claimed_twice_on_one_connection_closes_it() -> None:
    side = DecodeSide()
    granted = side.reserve()
    side.granted(granted)
    with pytest.raises(OutOfOrder, match="prefill-0 claims generation 1 again"):
        side.claim(granted)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"tokens": 1001}, "the prompt has 1001 tokens; 1000 are reserved"),
        ({"nbytes": (1 << 20) + 1}, "1048577 bytes; the region 1048576"),
    ],
)
def test_kv_05_a_prompt_longer_than_reserved_fails_the_request_at_once(
    changes: dict[str, int], fault: str
) -> None:
    side = DecodeSide()
    claim = claim_of(side.reserve())
    side.receiver.receive(0, other(claim, **changes))
    ((_, answer),) = side.said()
    assert isinstance(answer, Abort)
    assert fault in answer.reason
    failed = failure(side)
    assert isinstance(failed.error, HandOffFailed)
    assert fault in failed.error.message
    assert side.idle


def test_kv_05_exactly_as_many_tokens_and_bytes_as_fit() -> None:
    side = DecodeSide()
    claim = claim_of(side.reserve())
    side.receiver.receive(0, other(claim, tokens=1000, nbytes=1 << 20))
    assert isinstance(side.said()[0][1], Grant)


@pytest.mark.parametrize("changes", [{"tokens": 899}, {"last_token": 41}])
def test_kv_13_ranks_that_send_different_prompts_fail_the_request(changes: dict[str, int]) -> None:
    side = DecodeSide(ranks=(0, 1))
    granted = side.reserve()
    side.granted(granted, peer=0, rank=0)
    side.receiver.receive(1, other(claim_of(granted, rank=1), **changes))
    assert "rank 1 sends a prompt of" in failure(side).error.message
    assert [(peer, type(message)) for peer, message in side.said()] == [(1, Abort), (0, Abort)]
    assert side.gauges() == (2, 0, 0, 0, 0, 1), "rank 0 may be writing"


# --- endings -----------------------------------------------------------------------------------


def test_kv_02_a_late_commit_of_an_earlier_generation_completes_nothing() -> None:
    side = DecodeSide(ranks=(0, 1))
    first = side.reserve("a1")
    side.granted(first, peer=0, rank=0)
    side.reservations.release(first.generation, "the client left")
    assert side.said() == [(0, Abort(1, "the client left"))]
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


def test_the_transport_can_end_a_quarantine() -> None:
    side = DecodeSide()
    side.granted(side.reserve())
    side.receiver.settle(0)
    assert side.gauges() == (2, 0, 1, 0, 0, 0), "what is being written goes on"
    side.receiver.disconnect(0)
    assert side.gauges() == (2, 0, 0, 0, 0, 1)
    side.receiver.settle(1)
    assert side.gauges() == (2, 0, 0, 0, 0, 1)
    side.receiver.settle(0)
    assert side.idle


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
