from __future__ import annotations

from dataclasses import replace

import pytest

from tilert_transports.control.errors import HandOffFailed, OutOfOrder, PeerLost
from tilert_transports.control.messages import (
    Abort,
    Claim,
    Commit,
    Grant,
    Message,
    Ping,
    Pong,
    Progress,
    Released,
)
from tilert_transports.control.sender import HandOff, HandOffState, Sender

from .ledger import Clock

CLAIM = Claim("a1", "d-1", 3, 0, 900, 4096, 42)
GRANT = Grant("a1", 3, 0, 7, 1 << 20, 1 << 20, 30.0)


class PrefillSide:
    def __init__(self) -> None:
        self.clock = Clock()
        self.sent: list[Message] = []
        self.states: list[HandOffState] = []
        self.sender = Sender("decode-0", self.sent.append, self.clock)

    def claim(self) -> HandOff:
        hand_off = self.sender.claim(CLAIM, lambda: self.states.append(hand_off.state))
        assert self.said() == [CLAIM]
        return hand_off

    def writing(self) -> HandOff:
        hand_off = self.claim()
        self.sender.receive(GRANT)
        assert self.states.pop() is HandOffState.WRITING
        return hand_off

    def said(self) -> list[Message]:
        sent = list(self.sent)
        self.sent.clear()
        return sent


def test_a_hand_off() -> None:
    side = PrefillSide()
    hand_off = side.claim()
    assert hand_off.state is HandOffState.CLAIMED
    assert hand_off.grant is None
    side.sender.receive(GRANT)
    assert hand_off.grant == GRANT
    side.sender.progress(hand_off, 12)
    side.sender.commit(hand_off, checksum=77)
    assert side.said() == [Progress(3, 12), Commit(3, 4096, 77)]
    assert not hand_off.is_over
    side.sender.receive(Released(3))
    assert hand_off.is_over
    assert hand_off.error is None
    assert side.states == [HandOffState.WRITING, HandOffState.COMMITTED, HandOffState.DONE]
    assert side.sender.open == 0


@pytest.mark.parametrize(
    "changes", [{"request": "b2"}, {"rank": 1}, {"generation": 4}, {"nbytes": 4095}]
)
def test_kv_01_nothing_is_written_unless_the_whole_grant_fits(
    changes: dict[str, int | str],
) -> None:
    side = PrefillSide()
    hand_off = side.claim()
    wrong = replace(GRANT, **changes)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - one field of its own type
    with pytest.raises(OutOfOrder, match=r"decode-0 (grants|sends GRANT)"):
        side.sender.receive(wrong)
    assert hand_off.grant is None
    with pytest.raises(OutOfOrder, match="generation 3 is claimed, not writing"):
        side.sender.progress(hand_off, 1)
    with pytest.raises(OutOfOrder, match="generation 3 is claimed, not writing"):
        side.sender.commit(hand_off)
    assert side.said() == []


def test_kv_01_a_refused_claim_writes_nothing_and_owes_nothing() -> None:
    side = PrefillSide()
    hand_off = side.claim()
    side.sender.receive(Abort(3, "the prompt has 900 tokens; 800 are reserved"))
    assert hand_off.state is HandOffState.FAILED
    assert isinstance(hand_off.error, HandOffFailed)
    assert "decode-0 gave up: the prompt has 900 tokens" in hand_off.error.message
    with pytest.raises(HandOffFailed):
        side.sender.commit(hand_off)
    assert side.said() == []
    assert side.sender.open == 0


def test_an_abort_while_writing_is_answered_when_nothing_can_land_any_more() -> None:
    side = PrefillSide()
    hand_off = side.writing()
    side.sender.receive(Abort(3, "the client left"))
    assert side.states == [HandOffState.STOPPING]
    with pytest.raises(HandOffFailed, match="the client left"):
        side.sender.commit(hand_off)
    side.sender.abort(hand_off, "also here", settled=True)
    assert side.said() == []
    for _ in range(2):
        side.sender.stopped(hand_off)
    assert side.said() == [Released(3)]
    assert hand_off.state is HandOffState.FAILED
    assert side.sender.open == 0


@pytest.mark.parametrize("granted", [False, True])
def test_giving_up(granted: bool) -> None:
    side = PrefillSide()
    hand_off = side.writing() if granted else side.claim()
    side.sender.abort(hand_off, "preempted", settled=True)
    assert side.said() == [Abort(3, "preempted", settled=True)]
    assert side.states == [HandOffState.FAILED]
    side.sender.abort(hand_off, "again", settled=True)
    side.sender.stopped(hand_off)
    assert side.said() == []
    if not granted:
        side.sender.receive(GRANT)  # it was on its way
        assert hand_off.grant is None
    side.sender.receive(Released(3))
    with pytest.raises(OutOfOrder, match="RELEASED for generation 3, which is not claimed"):
        side.sender.receive(Released(3))


def test_giving_up_before_the_writes_have_stopped() -> None:
    side = PrefillSide()
    hand_off = side.writing()
    side.sender.abort(hand_off, "timed out", settled=False)
    assert side.said() == [Abort(3, "timed out", settled=False)]
    assert hand_off.state is HandOffState.STOPPING
    side.sender.receive(Abort(3, "so be it"))
    assert isinstance(hand_off.error, HandOffFailed)
    assert "given up by this node: timed out" in hand_off.error.message
    side.sender.stopped(hand_off)
    assert side.said() == [Released(3)]


def test_an_abort_that_crosses_a_commit_needs_no_answer() -> None:
    side = PrefillSide()
    hand_off = side.writing()
    side.sender.commit(hand_off)
    side.said()
    side.sender.abort(hand_off, "too late", settled=True)
    side.sender.receive(Abort(3, "expired"))
    assert hand_off.state is HandOffState.FAILED
    assert "expired" in str(hand_off.error)
    side.sender.stopped(hand_off)
    assert side.said() == []


def test_the_lease_runs_from_the_moment_of_the_claim() -> None:
    side = PrefillSide()
    assert side.sender.next_deadline is None
    side.claim()
    assert side.sender.next_deadline is None
    side.clock.now += 12
    side.sender.receive(GRANT)
    assert side.sender.next_deadline == 130
    side.clock.now = 129.9
    side.sender.expire()
    assert side.states == [HandOffState.WRITING]
    side.clock.now = 130
    side.sender.expire()
    assert side.states == [HandOffState.WRITING, HandOffState.STOPPING]
    assert side.said() == [Abort(3, "the lease ran out", settled=False)]
    assert side.sender.next_deadline is None


def test_a_ping_that_is_answered_renews_the_lease_from_when_it_was_sent() -> None:
    side = PrefillSide()
    hand_off = side.writing()
    side.clock.now = 110
    side.sender.ping()
    side.clock.now = 120
    side.sender.ping()
    assert side.said() == [Ping(1), Ping(2)]
    side.clock.now = 128
    side.sender.receive(Pong(2))
    assert side.sender.next_deadline == 150
    side.sender.receive(Pong(1))
    assert side.sender.next_deadline == 150, "an older ping takes nothing back"
    side.sender.expire()
    assert hand_off.state is HandOffState.WRITING
    with pytest.raises(OutOfOrder, match="answers ping 2, which was never sent"):
        side.sender.receive(Pong(2))


def test_pings_are_answered() -> None:
    side = PrefillSide()
    side.sender.receive(Ping(9))
    assert side.said() == [Pong(9)]


@pytest.mark.parametrize("reach", ["claim", "writing", "stopping", "committed"])
def test_the_end_of_the_connection_ends_every_hand_off(reach: str) -> None:
    side = PrefillSide()
    hand_off = side.claim() if reach == "claim" else side.writing()
    if reach == "stopping":
        side.sender.receive(Abort(3, "expired"))
    if reach == "committed":
        side.sender.commit(hand_off)
    side.said()
    side.sender.disconnect()
    assert hand_off.state is HandOffState.FAILED
    expected = HandOffFailed if reach == "stopping" else PeerLost
    assert isinstance(hand_off.error, expected)
    assert side.said() == []
    assert side.sender.open == 0


def test_a_generation_is_claimed_once() -> None:
    side = PrefillSide()
    hand_off = side.claim()
    with pytest.raises(OutOfOrder, match="generation 3 has been claimed already"):
        side.sender.claim(CLAIM, lambda: None)
    side.sender.abort(hand_off, "given up", settled=True)
    with pytest.raises(OutOfOrder, match="generation 3 has been claimed already"):
        side.sender.claim(CLAIM, lambda: None)


@pytest.mark.parametrize("message", [Released(3), Abort(4, "x"), replace(GRANT, generation=4)])
def test_a_message_for_what_was_not_claimed_closes_the_connection(message: Message) -> None:
    side = PrefillSide()
    with pytest.raises(OutOfOrder, match="which is not claimed"):
        side.sender.receive(message)


def test_a_second_grant_or_an_early_release_closes_the_connection() -> None:
    side = PrefillSide()
    side.writing()
    with pytest.raises(OutOfOrder, match="grants generation 3 twice"):
        side.sender.receive(GRANT)
    with pytest.raises(OutOfOrder, match="releases generation 3, which is not committed"):
        side.sender.receive(Released(3))


@pytest.mark.parametrize("message", [CLAIM, Progress(3, 1), Commit(3, 1)])
def test_what_only_prefill_may_say_closes_the_connection(message: Message) -> None:
    side = PrefillSide()
    with pytest.raises(OutOfOrder, match=f"sends a {message.TYPE.upper()}; only prefill does"):
        side.sender.receive(message)
