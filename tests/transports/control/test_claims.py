from __future__ import annotations

import pytest

from tilert_transports.control.errors import (
    HandOffFailed,
    HandshakeRefused,
    OutOfOrder,
    PromptMismatch,
)
from tilert_transports.control.messages import (
    Abort,
    Commit,
    Decline,
    Grant,
)
from tilert_transports.control.prompt import PromptIdentity
from tilert_transports.control.reservation import Failed

from .ledger import DecodeSide, claim_of, other


def failure(side: DecodeSide) -> Failed:
    (event,) = side.heard()
    assert isinstance(event, Failed)
    return event


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


OTHER_PROMPTS: list[dict[str, int | str]] = [
    {"tokens": 899},
    {"last_token": 41},
    {"digest": "f" * 16},
]


@pytest.mark.parametrize("changes", OTHER_PROMPTS)
def test_kv_13_ranks_that_send_different_prompts_fail_the_request(
    changes: dict[str, int | str],
) -> None:
    side = DecodeSide(ranks=(0, 1))
    granted = side.reserve()
    side.granted(granted, peer=0, rank=0)
    side.receiver.receive(1, other(claim_of(granted, rank=1), **changes))
    error = failure(side).error
    assert isinstance(error, PromptMismatch)
    assert "rank 1 sends the KV cache of a prompt of" in error.message
    assert [(peer, type(message)) for peer, message in side.said()] == [(1, Abort), (0, Abort)]
    assert side.gauges() == (2, 0, 0, 0, 0, 1), "rank 0 may be writing"


PROMPT = PromptIdentity(900, 42, "0123456789abcdef")


@pytest.mark.parametrize("changes", [*OTHER_PROMPTS, {"digest": None}])
def test_kv_13_another_prompts_cache_is_not_let_in(changes: dict[str, int | str]) -> None:
    side = DecodeSide()
    granted = side.reservations.reserve("a1", 1000, PROMPT)
    fits = other(claim_of(granted), digest=PROMPT.digest or "")
    claim = other(fits, **changes)
    side.receiver.receive(0, claim)
    ((_, answer),) = side.said()
    assert isinstance(answer, Abort)
    error = failure(side).error
    assert isinstance(error, PromptMismatch)
    assert error.message == answer.reason
    for value in (claim.prompt, PROMPT):
        assert str(value) in error.message
    assert side.idle, "the region is free, and the next request has it"
    granted = side.reservations.reserve("a2", 1000, PROMPT)
    side.receiver.receive(0, other(claim_of(granted), digest=PROMPT.digest or ""))
    assert isinstance(side.said()[0][1], Grant)


def test_pd_14_what_is_declined_fails_at_once_and_only_by_its_whole_name() -> None:
    side = DecodeSide()
    granted = side.reserve("a1")
    for request, incarnation, generation in (("b2", "d-1", 1), ("a1", "d-0", 1), ("a1", "d-1", 2)):
        side.receiver.receive(0, Decline(request, incarnation, generation, "aborted"))
    assert side.heard() == []
    assert side.receiver.statistics.stale == 3
    side.receiver.receive(0, Decline("a1", "d-1", granted.generation, "aborted"))
    assert failure(side).error.message == "prefill node prefill-0 gave up: aborted"
    assert side.idle
    assert side.said() == []


def test_pd_14_a_rank_that_declines_stops_the_others() -> None:
    side = DecodeSide(ranks=(0, 1))
    granted = side.reserve()
    side.granted(granted, peer=0, rank=0)
    side.receiver.receive(1, Decline("a1", "d-1", granted.generation, "aborted"))
    assert "aborted" in failure(side).error.message
    assert side.said() == [(0, Abort(1, "prefill node prefill-1 gave up: aborted"))]


def test_a_cache_that_has_landed_is_not_declined() -> None:
    side = DecodeSide()
    granted = side.reserve()
    side.granted(granted)
    side.receiver.receive(0, Commit(1, 4096))
    side.heard()
    grant = claim_of(granted).grant
    assert not side.receiver.turn_away(grant, HandshakeRefused("too late"))
    assert side.heard() == []
    assert side.reservations.take(1).request == "a1"


def test_a_claim_that_nobody_waits_for_is_told_so() -> None:
    side = DecodeSide()
    granted = side.reserve()
    side.reservations.release(1, "the client has left")
    side.claim(granted)
    ((_, answer),) = side.said()
    assert answer == Abort(1, "the grant has expired, was released, or is another's", unwanted=True)


def test_a_writer_whose_request_has_ended_is_told_that_nothing_has_failed() -> None:
    side = DecodeSide()
    side.granted(side.reserve())
    side.reservations.release(1, "the client has left")
    assert side.said() == [(0, Abort(1, "the client has left", unwanted=True))]
