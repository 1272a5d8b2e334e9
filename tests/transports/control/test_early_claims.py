"""Claims that come before their reservation, named by a router."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilert_transports.control.early_claims import MOST, PATIENCE, REMEMBERED, EarlyClaims
from tilert_transports.control.grant_id import FORETOLD
from tilert_transports.control.messages import Abort, Claim, Decline, Grant
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


def test_what_its_peer_takes_back_is_forgotten() -> None:
    for gone in (0, 1, 2):
        side = DecodeSide()
        side.receiver.receive(0, EARLY)
        if gone == 0:
            side.receiver.receive(0, Decline(EARLY.request, EARLY.incarnation, NAMED, "cancelled"))
        elif gone == 1:
            side.receiver.receive(0, Abort(NAMED, "cancelled"))
        else:
            side.receiver.disconnect(0)
        side.reservations.reserve("a1", 1000, generation=NAMED)
        side.receiver.admit_early(NAMED)
        assert side.said() == []
        assert side.gauges()[:3] == (2, 1, 0)


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


def test_no_more_than_so_many_wait() -> None:
    side = DecodeSide()
    for number in range(MOST):
        side.receiver.receive(0, replace(EARLY, generation=NAMED + number))
    assert side.said() == []
    side.receiver.receive(0, replace(EARLY, generation=NAMED + MOST))
    assert len(side.said()) == 1


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
