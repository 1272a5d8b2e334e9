from __future__ import annotations

import pytest

from tilert_stream.errors import Busy, ContextLengthExceeded
from tilert_transports.control.errors import (
    GrantGone,
    OutOfOrder,
    RequestInUse,
)
from tilert_transports.control.messages import (
    Commit,
)
from tilert_transports.control.reservation import Failed

from .ledger import MAX_SEQ_LEN, DecodeSide


def failure(side: DecodeSide) -> Failed:
    (event,) = side.heard()
    assert isinstance(event, Failed)
    return event


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
