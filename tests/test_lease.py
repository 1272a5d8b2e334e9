from __future__ import annotations

import logging
from functools import partial

import pytest

from tilert_stream.errors import Cancelled
from tilert_stream.lease import Lease, Ledger


class Recorder:
    """What was given back, in order."""

    def __init__(self) -> None:
        self.returned: list[tuple[str, str]] = []

    def hold_all(self, lease: Lease, *kinds: str) -> None:
        for kind in kinds:
            lease.hold(kind, partial(self._note, kind))

    def _note(self, kind: str, reason: str) -> None:
        self.returned.append((kind, reason))


def test_things_go_back_in_the_reverse_order_of_their_coming() -> None:
    ledger, recorder = Ledger(), Recorder()
    lease = Lease("a1", ledger)
    recorder.hold_all(lease, "slot", "prefill", "sequence")
    assert ledger.counts == {"lease": 1, "slot": 1, "prefill": 1, "sequence": 1}
    lease.release("length")
    assert recorder.returned == [("sequence", "length"), ("prefill", "length"), ("slot", "length")]
    assert ledger.counts == {}


def test_release_is_idempotent_and_the_first_reason_stays() -> None:
    ledger, recorder = Ledger(), Recorder()
    lease = Lease("a1", ledger)
    assert lease.released is None
    recorder.hold_all(lease, "slot")
    lease.release("cancelled")
    lease.release("stop")
    assert lease.released == "cancelled"
    assert recorder.returned == [("slot", "cancelled")]
    assert ledger.counts == {}


def test_a_hold_given_back_early_is_not_given_back_again() -> None:
    ledger, recorder = Ledger(), Recorder()
    lease = Lease("a1", ledger)
    hold = lease.hold("prefill", lambda reason: recorder.returned.append(("prefill", reason)))
    recorder.hold_all(lease, "sequence")
    hold.release("prefilled")
    hold.release("prefilled")
    assert ledger.counts == {"lease": 1, "sequence": 1}
    lease.release("length")
    hold.release("late")
    assert recorder.returned == [("prefill", "prefilled"), ("sequence", "length")]
    assert ledger.counts == {}


def test_a_thing_that_comes_late_goes_straight_back() -> None:
    ledger, recorder = Ledger(), Recorder()
    lease = Lease("a1", ledger)
    lease.release("cancelled")
    with pytest.raises(Cancelled, match=r"request a1 ended \(cancelled\) before its slot came"):
        recorder.hold_all(lease, "slot")
    assert recorder.returned == [("slot", "cancelled")]
    assert ledger.counts == {}


def test_one_thing_that_cannot_be_returned_does_not_keep_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ledger, recorder = Ledger(), Recorder()
    lease = Lease("a1", ledger)

    def broken(_reason: str) -> None:
        raise OSError("the node has gone")

    recorder.hold_all(lease, "slot")
    lease.hold("grant", broken)
    recorder.hold_all(lease, "sequence")
    with caplog.at_level(logging.ERROR):
        lease.release("error")
    assert recorder.returned == [("sequence", "error"), ("slot", "error")]
    assert ledger.counts == {}
    assert [record.getMessage() for record in caplog.records] == [
        "could not give back grant (error)"
    ]
    assert "the node has gone" in caplog.text


def test_a_release_that_comes_back_to_the_lease_changes_nothing() -> None:
    ledger, recorder = Ledger(), Recorder()
    lease = Lease("a1", ledger)
    recorder.hold_all(lease, "slot")
    lease.hold("sequence", lambda _reason: lease.release("again"))
    lease.release("stop")
    assert recorder.returned == [("slot", "stop")]
    assert ledger.counts == {}


def test_a_thing_claimed_while_releasing_goes_straight_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ledger, recorder = Ledger(), Recorder()
    lease = Lease("a1", ledger)
    lease.hold("sequence", lambda _reason: recorder.hold_all(lease, "late"))
    with caplog.at_level(logging.ERROR):
        lease.release("stop")
    assert recorder.returned == [("late", "stop")]
    assert ledger.counts == {}


def test_two_leases_share_a_ledger() -> None:
    ledger, recorder = Ledger(), Recorder()
    first, second = Lease("a1", ledger), Lease("a2", ledger)
    recorder.hold_all(first, "slot")
    recorder.hold_all(second, "slot")
    assert ledger.counts == {"lease": 2, "slot": 2}
    first.release("stop")
    assert ledger.counts == {"lease": 1, "slot": 1}
    second.release("stop")
    assert ledger.counts == {}


def test_a_lease_that_was_forgotten_is_reported() -> None:
    with pytest.warns(ResourceWarning, match="lease of request a1 was never released"):
        Lease("a1", Ledger())


def test_a_released_lease_is_not() -> None:
    lease = Lease("a1", Ledger())
    lease.release("stop")
    del lease  # a warning here would be an error
