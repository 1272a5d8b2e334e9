"""Claims, reservations and everything that ends either, in any order: one last word for each."""

from __future__ import annotations

from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from tilert_stream.errors import Busy
from tilert_transports.control import early_claims
from tilert_transports.control.early_claims import PATIENCE
from tilert_transports.control.errors import OutOfOrder, RequestInUse
from tilert_transports.control.grant_id import FORETOLD
from tilert_transports.control.messages import Abort, Claim, Decline, Grant, Released

from .ledger import DecodeSide

SHARE, MOST, PEERS = 2, 5, 4
names = st.integers(FORETOLD, FORETOLD + 5)
peers = st.integers(0, PEERS - 1)
KINDS = ["claim"] * 5 + ["abort", "decline", "leave", "reserve", "refuse", "release", "wait"]
steps = st.tuples(st.sampled_from(KINDS), peers, names)


class Driven:
    """A decode node, and what each of its peers is owed: peers that leave come again as others."""

    def __init__(self) -> None:
        self.side = DecodeSide(ranks=range(PEERS), slots=2, peers=PEERS)
        self.numbers = list(range(PEERS))
        self.owed: set[tuple[int, int]] = set()
        """Claims without an answer."""
        self.granted: set[tuple[int, int]] = set()
        self.stopping: set[tuple[int, int]] = set()
        """Told to stop, and have not said that they did."""
        self.spent: set[int] = set()
        """Names by which nothing may be granted, or be granted again."""

    def take(self, step: str, peer: int, name: int) -> None:
        number, side = self.numbers[peer], self.side
        living = side.reservations.living(name) is not None
        match step:
            case "claim":
                self.claim(number, Claim(f"r{name}", "d-1", name, peer, 900, 4096, 42))
            case "leave":
                self.leave(peer)
            case "reserve":
                self.reserve(name)
            case "wait":
                side.clock.now += PATIENCE / 2
                side.reservations.expire()
            case "refuse" if not living:
                side.receiver.refuse_early(name)
                self.spent.add(name)
            case "release":
                side.reservations.release(name, "the client has left")
            case _:
                self.give_up(step, number, name)
        self.listen()

    def give_up(self, step: str, number: int, name: int) -> None:
        if step == "abort":
            self.spent |= {name} if (number, name) in self.owed else set()
            self.stopping.discard((number, name))
            self.side.receiver.receive(number, Abort(name, "preempted"))
        elif step == "decline":
            if self.side.reservations.living(name) is None:
                self.owed.discard((number, name))
            self.spent.add(name)
            self.side.receiver.receive(number, Decline(f"r{name}", "d-1", name, "no memory"))

    def leave(self, peer: int) -> None:
        number = self.numbers[peer]
        self.spent |= {name for owner, name in self.owed if owner == number}
        self.owed = {pair for pair in self.owed if pair[0] != number}
        self.granted = {pair for pair in self.granted if pair[0] != number}
        self.stopping = {pair for pair in self.stopping if pair[0] != number}
        self.side.receiver.disconnect(number)
        self.numbers[peer] = max(self.numbers) + 1
        self.side.receiver.connect(self.numbers[peer], f"prefill-{self.numbers[peer]}")

    def claim(self, number: int, claim: Claim) -> None:
        pair = (number, claim.generation)
        twice = pair in self.owed | self.granted | self.stopping
        try:
            self.side.receiver.receive(number, claim)
        except OutOfOrder:
            assert twice
        else:
            assert not twice
            self.owed.add(pair)

    def reserve(self, name: int) -> None:
        try:
            granted = self.side.reservations.reserve(f"r{name}", 1000, generation=name)
        except (Busy, RequestInUse):
            return
        assert (granted.generation == name) is (name not in self.spent)
        self.spent.add(name)
        self.side.receiver.admit_early(granted.generation)
        if granted.generation != name:
            self.side.reservations.release(granted.generation, "asked anew")

    def listen(self) -> None:
        for number, word in self.side.said():
            assert isinstance(word, Grant | Abort | Released)
            pair = (number, word.generation)
            assert pair in self.owed or (pair in self.granted and not isinstance(word, Grant))
            if isinstance(word, Abort) and pair in self.granted:
                self.stopping.add(pair)
            elif isinstance(word, Abort):
                # Too many, too late, refused, over: nobody brings a cache for it.
                self.spent.add(word.generation)
            self.owed.discard(pair)
            self.granted.discard(pair)
            if isinstance(word, Grant):
                self.granted.add(pair)
        early = self.side.reservations.early
        assert len(early) <= MOST
        assert all(len(early.of(number)) <= SHARE for number in self.numbers)


@settings(max_examples=300)
@given(st.lists(steps, min_size=10, max_size=60))
def test_each_claim_has_one_answer_and_no_spent_name_is_granted(
    taken: list[tuple[str, int, int]],
) -> None:
    with (
        patch.object(early_claims, "SHARE", SHARE),
        patch.object(early_claims, "MOST", MOST),
    ):
        driven = Driven()
        for step in taken:
            driven.take(*step)
        driven.side.clock.now += PATIENCE
        driven.side.reservations.expire()
        driven.listen()
        assert driven.owed == set()
        assert len(driven.side.reservations.early) == 0
