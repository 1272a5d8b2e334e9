"""Claims that come before their reservation, named by a router."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilert_transports.control.early_claims import (
    MOST,
    PATIENCE,
    REMEMBERED,
    SHARE,
    EarlyClaims,
)
from tilert_transports.control.errors import OutOfOrder
from tilert_transports.control.grant_id import FORETOLD
from tilert_transports.control.messages import (
    Abort,
    Claim,
    Commit,
    Decline,
    Grant,
    Progress,
    Released,
)
from tilert_transports.control.prompt import PromptIdentity
from tilert_transports.control.reservation import Failed

from .ledger import DecodeSide

NAMED = FORETOLD + 7
EARLY = Claim("a1", "d-1", NAMED, 0, 900, 4096, 42)


def test_it_is_let_in_when_the_reservation_comes() -> None:
    side = DecodeSide()
    side.receiver.receive(0, EARLY)
    assert side.said() == []
    granted = side.reservations.reserve("a1", 1000, generation=NAMED)
    assert granted.generation == NAMED
    side.receiver.admit_early(NAMED)
    ((peer, grant),) = side.said()
    assert peer == 0
    assert isinstance(grant, Grant)
    assert grant.generation == NAMED
    side.receiver.admit_early(NAMED)
    assert side.said() == []


def test_it_is_refused_when_none_has_come_in_time() -> None:
    side = DecodeSide()
    side.receiver.receive(0, EARLY)
    assert side.reservations.next_deadline == side.clock.now + PATIENCE
    side.clock.now += PATIENCE
    side.reservations.expire()
    ((peer, answer),) = side.said()
    assert peer == 0
    assert isinstance(answer, Abort)
    assert side.reservations.next_deadline is None


def test_only_a_name_that_a_router_could_have_given_waits() -> None:
    side = DecodeSide()
    for claim in (replace(EARLY, generation=9), replace(EARLY, incarnation="d-0")):
        side.receiver.receive(0, claim)
        ((_, answer),) = side.said()
        assert isinstance(answer, Abort)


WITHDRAWALS = [
    Abort(NAMED, "cancelled"),
    Released(NAMED),
    Decline(EARLY.request, EARLY.incarnation, NAMED, "cancelled"),
    None,
]


def withdraw(side: DecodeSide, word: Abort | Released | Decline | None, peer: int = 0) -> None:
    """Say so, or end the connection."""
    if word is None:
        side.receiver.disconnect(peer)
    else:
        side.receiver.receive(peer, word)


@pytest.mark.parametrize("word", WITHDRAWALS)
def test_no_grant_is_given_by_a_name_that_prefill_has_taken_back(
    word: Abort | Released | Decline | None,
) -> None:
    """Its router sees that, and has prefill asked again; else its request would wait in vain."""
    side = DecodeSide()
    side.receiver.receive(0, EARLY)
    withdraw(side, word)
    # Who has claimed gets one last word; who declines has had a grant refused, or made no claim.
    answered = isinstance(word, Abort | Released)
    assert side.said() == ([(0, Released(NAMED))] if answered else [])
    granted = side.reservations.reserve("a1", 1000, generation=NAMED)
    assert granted.generation == 1
    side.receiver.admit_early(granted.generation)
    assert side.said() == []
    assert side.gauges()[:3] == (2, 1, 0)
    assert side.heard() == [], "it is waited for by its new name"


@pytest.mark.parametrize("word", WITHDRAWALS)
def test_the_other_ranks_are_told_when_one_takes_it_back(
    word: Abort | Released | Decline | None,
) -> None:
    side = DecodeSide(ranks=(0, 1))
    for rank in (0, 1):
        side.receiver.receive(rank, replace(EARLY, rank=rank))
    withdraw(side, word)
    told = [(peer, message) for peer, message in side.said() if peer == 1]
    assert [type(message) for _, message in told] == [Abort]
    side.receiver.receive(1, replace(EARLY, rank=1))
    ((_, answer),) = side.said()
    assert isinstance(answer, Abort), "it is over"


def test_what_was_never_claimed_is_declined_before_its_reservation_comes() -> None:
    side = DecodeSide()
    side.receiver.receive(0, Decline("a1", "d-0", NAMED, "another node's"))
    side.receiver.receive(0, Decline("a1", "d-1", NAMED + 1, "no memory"))
    assert side.reservations.reserve("a1", 1000, generation=NAMED).generation == NAMED
    assert side.reservations.reserve("a2", 1000, generation=NAMED + 1).generation == 1


def test_a_commit_without_a_grant_takes_nothing_back() -> None:
    side = DecodeSide()
    side.receiver.receive(0, EARLY)
    side.receiver.receive(0, Commit(NAMED, 4096))
    side.receiver.receive(0, Progress(NAMED, 1))
    assert side.receiver.statistics.stale == 2
    side.reservations.reserve("a1", 1000, generation=NAMED)
    side.receiver.admit_early(NAMED)
    ((_, answer),) = side.said()
    assert isinstance(answer, Grant)


def test_a_second_claim_on_one_connection_is_out_of_order_here_too() -> None:
    """Its answer would name the generation alone, and end the first one at the sender."""
    side = DecodeSide()
    side.receiver.receive(0, EARLY)
    for again in (EARLY, replace(EARLY, rank=1), replace(EARLY, request="b2")):
        with pytest.raises(OutOfOrder, match=f"prefill-0 claims generation {NAMED} again"):
            side.receiver.receive(0, again)
    assert side.said() == []
    side.receiver.receive(1, replace(EARLY, request="b2"))
    side.receiver.receive(0, replace(EARLY, generation=NAMED + 1))
    side.receiver.disconnect(0)
    for generation in (NAMED, NAMED + 1):
        assert side.reservations.reserve(f"{generation}", 9, generation=generation).generation < 9


def test_one_that_was_refused_may_be_claimed_again_and_is_refused_again() -> None:
    side = DecodeSide()
    side.receiver.receive(0, EARLY)
    side.clock.now += PATIENCE
    side.reservations.expire()
    side.receiver.receive(0, EARLY)
    assert [(peer, type(answer)) for peer, answer in side.said()] == [(0, Abort)] * 2


def test_another_requests_claim_is_refused_then() -> None:
    side = DecodeSide()
    side.receiver.receive(0, replace(EARLY, request="b2"))
    side.reservations.reserve("a1", 1000, generation=NAMED)
    side.receiver.admit_early(NAMED)
    ((_, answer),) = side.said()
    assert isinstance(answer, Abort)
    assert side.heard() == []


def test_another_prompts_cache_fails_the_reservation() -> None:
    side = DecodeSide()
    side.receiver.receive(0, EARLY)
    side.reservations.reserve("a1", 1000, PromptIdentity(900, 43, None), generation=NAMED)
    side.receiver.admit_early(NAMED)
    ((_, answer),) = side.said()
    assert isinstance(answer, Abort)
    (event,) = side.heard()
    assert isinstance(event, Failed)
    assert side.idle


def claims_of(side: DecodeSide, peer: int, count: int, first: int) -> list[int]:
    """Have ``peer`` claim so many; the generations that it was turned away from."""
    for number in range(first, first + count):
        side.receiver.receive(peer, replace(EARLY, generation=NAMED + number))
    said = side.said()
    assert all(to == peer and isinstance(message, Abort) for to, message in said)
    return [message.generation - NAMED for _, message in said if isinstance(message, Abort)]


def test_one_peer_takes_no_more_than_its_share() -> None:
    side = DecodeSide(peers=3)
    assert claims_of(side, 0, SHARE + 3, 0) == [SHARE, SHARE + 1, SHARE + 2]
    assert claims_of(side, 1, SHARE, 1000) == [], "the others have theirs"
    assert side.reservations.reserve("a1", 1000, generation=NAMED).generation == NAMED
    side.receiver.admit_early(NAMED)
    assert len(side.said()) == 1
    assert claims_of(side, 0, 2, 2000) == [2001], "one has been taken"
    side.receiver.disconnect(0)
    assert claims_of(side, 2, SHARE, 3000) == []


def test_all_together_take_no_more_than_so_many() -> None:
    peers = MOST // SHARE
    side = DecodeSide(peers=peers + 1)
    for peer in range(peers):
        assert claims_of(side, peer, SHARE, 1000 * peer) == []
    assert len(side.reservations.early) == MOST
    assert claims_of(side, peers, 2, 90_000) == [90_000, 90_001]
    side.clock.now += PATIENCE
    side.reservations.expire()
    assert len(side.said()) == MOST
    assert claims_of(side, peers, SHARE, 91_000) == []


def test_no_grant_is_given_by_a_name_that_prefill_was_turned_away_from() -> None:
    """Too many waited, or its reservation came too late: somebody else has to bring the cache."""
    side = DecodeSide()
    claims_of(side, 0, SHARE, 0)
    assert claims_of(side, 0, 1, SHARE) == [SHARE]
    side.clock.now += PATIENCE
    side.reservations.expire()
    assert len(side.said()) == SHARE
    for number, generation in enumerate((NAMED + SHARE, NAMED), start=1):
        granted = side.reservations.reserve(f"a{number}", 9, generation=generation)
        assert granted.generation == number


def test_the_late_ranks_of_a_generation_go_together() -> None:
    side = DecodeSide(ranks=(0, 1))
    side.receiver.receive(0, EARLY)
    side.clock.now += PATIENCE - 1
    side.receiver.receive(1, replace(EARLY, rank=1))
    side.clock.now += 1
    side.reservations.expire()
    assert [(peer, type(answer)) for peer, answer in side.said()] == [(0, Abort), (1, Abort)]
    assert side.reservations.next_deadline is None


def test_a_name_in_use_is_not_given_twice() -> None:
    side = DecodeSide()
    assert side.reservations.reserve("a1", 1000, generation=NAMED).generation == NAMED
    assert side.reservations.reserve("b2", 1000, generation=NAMED).generation == 1


@pytest.mark.parametrize("claimed_first", [True, False])
def test_it_is_refused_at_once_where_its_router_was(claimed_first: bool) -> None:
    """It holds a KV cache meanwhile, which others wait for room to put theirs."""
    side = DecodeSide()
    if claimed_first:
        side.receiver.receive(0, EARLY)
        assert side.said() == []
    side.receiver.refuse_early(NAMED)
    if not claimed_first:
        side.receiver.receive(0, EARLY)
    ((peer, answer),) = side.said()
    assert (peer, type(answer)) == (0, Abort)
    assert side.reservations.next_deadline is None


def test_it_is_refused_at_once_where_its_reservation_is_over() -> None:
    """As when the client has left, or its first token was the last."""
    side = DecodeSide()
    side.reservations.reserve("a1", 1000, generation=NAMED)
    side.reservations.release(NAMED, "cancelled")
    side.receiver.receive(0, EARLY)
    ((_, answer),) = side.said()
    assert isinstance(answer, Abort)
    assert side.reservations.next_deadline is None


def test_only_so_many_that_are_over_are_remembered() -> None:
    early = EarlyClaims()
    for number in range(REMEMBERED + 1):
        early.end(NAMED + number)
    assert early.keep(0, EARLY, 0), "the oldest is forgotten"
    assert not early.keep(0, replace(EARLY, generation=NAMED + 1), 0)
    assert not early.keep(0, replace(EARLY, generation=NAMED + REMEMBERED), 0)


def test_what_peers_say_makes_nobody_forget_what_this_node_has_said() -> None:
    early = EarlyClaims()
    early.end(NAMED)
    for number in range(1, REMEMBERED + 2):
        early.give_up(NAMED + number)
    assert early.is_spent(NAMED)
    assert not early.is_spent(NAMED + 1), "of those the oldest is forgotten"
    assert early.is_spent(NAMED + 2)
    early.give_up(9)
    assert not early.is_spent(9), "the node's own names come by count"
