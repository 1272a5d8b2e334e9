"""Decode node and prefill nodes joined by queues, driven at random.

Messages of one connection stay in order; everything else may happen at any time: a delivery, the
end of a connection, a lease running out, a holder that leaves, a message of no grant at all.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import cast

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tilert_stream.errors import Busy
from tilert_transports.control.errors import ControlError, GrantGone, OutOfOrder, PeerLost
from tilert_transports.control.messages import (
    Abort,
    Claim,
    Commit,
    Message,
    Progress,
    Released,
)
from tilert_transports.control.receiver import Receiver
from tilert_transports.control.regions import LandingRegion, RegionPool
from tilert_transports.control.reservation import Event, Failed, Granted, Landed, Progressed
from tilert_transports.control.reservations import Reservations, ReservationSettings
from tilert_transports.control.sender import HandOff, HandOffState, Sender

from .ledger import Clock, claim_of, make_regions, other

LOST_WRITER_TIME = 60.0
STATES = HandOffState
STRAYS = [Commit(1, 4096), Abort(1, "no claim"), Progress(1, 3), Released(1)]


class Writes:
    """Bytes that one hand-off has under way, as a transport would see them."""

    def __init__(self, hand_off: HandOff, region: LandingRegion) -> None:
        self.hand_off = hand_off
        self.region = region
        self.lands_until: float | None = None
        """Set when the connection is gone: a transport ends within that time."""


class Connection:
    def __init__(self, number: int, machine: HandOffs) -> None:
        self.number = number
        self.machine = machine
        self.to_decode: deque[Message] = deque()
        self.to_prefill: deque[Message] = deque()
        self.sender = Sender(f"decode, seen by {number}", self.to_decode.append, machine.clock)
        self.hand_offs: list[HandOff] = []
        self.writes: list[Writes] = []

    def claim(self, claim: Claim) -> None:
        hand_off = self.sender.claim(claim, lambda: self.changed(hand_off))
        self.hand_offs.append(hand_off)
        self.machine.claimed.append(hand_off)

    def changed(self, hand_off: HandOff) -> None:
        if hand_off.state is STATES.WRITING:
            grant = hand_off.grant
            assert grant is not None
            region = LandingRegion(grant.region, grant.offset, grant.nbytes)
            self.writes.append(Writes(hand_off, region))
        if hand_off.state in (STATES.COMMITTED, STATES.DONE):
            self.writes = [w for w in self.writes if w.hand_off is not hand_off]

    def settle(self, hand_off: HandOff) -> None:
        self.writes = [w for w in self.writes if w.hand_off is not hand_off]


class HandOffs(RuleBasedStateMachine):
    clock: Clock
    ranks: tuple[int, ...]

    @initialize(ranks=st.sampled_from([(0,), (0, 1)]), slots=st.integers(0, 1))
    def start(self, ranks: tuple[int, ...], slots: int) -> None:
        self.clock = Clock()
        self.ranks = ranks
        self.pool = RegionPool(make_regions(slots + 2), slots)
        self.reservations = Reservations(
            self.pool,
            incarnation="d-1",
            max_seq_len=1000,
            send=self.post,
            tell=self.tell,
            clock=self.clock,
            sooner=lambda: None,
            settings=ReservationSettings(
                ttl=30, max_lifetime=200, lost_writer_time=LOST_WRITER_TIME
            ),
        )
        self.receiver = Receiver(self.reservations, ranks, self.post)
        self.connections: dict[int, Connection] = {}
        self.claimed: list[HandOff] = []
        self.gone: list[Writes] = []
        self.granted: dict[int, Granted] = {}
        """Generations that their holder has, or had."""
        self.ended: set[int] = set()
        """Generations whose end their holder knows."""
        self.landed: set[int] = set()
        self.taken: set[int] = set()
        self.names = 0
        for _ in range(2):
            self.connect()

    def connect(self) -> None:
        self.names += 1
        self.connections[self.names] = Connection(self.names, self)
        self.receiver.connect(self.names, f"prefill-{self.names}")

    def post(self, peer: int, message: Message) -> None:
        self.connections[peer].to_prefill.append(message)

    def tell(self, event: Event) -> None:
        assert event.generation not in self.ended, "nobody is told of what is over"
        match event:
            case Failed():
                self.ended.add(event.generation)
            case Landed():
                assert event.generation not in self.landed
                self.landed.add(event.generation)
                assert self.committed(event.generation) >= set(self.ranks)
            case Progressed():
                assert event.rank in self.ranks

    def committed(self, generation: int) -> set[int]:
        """The ranks whose senders say so."""
        said = (STATES.COMMITTED, STATES.DONE)
        return {
            hand_off.claim.rank
            for hand_off in self.claimed
            if hand_off.claim.generation == generation
            and (hand_off.state in said or isinstance(hand_off.error, PeerLost))
        }

    # --- what can happen ---------------------------------------------------------------------

    def connection(self, data: st.DataObject) -> Connection:
        return self.connections[data.draw(st.sampled_from(sorted(self.connections)))]

    def hand_off(self, data: st.DataObject, *states: HandOffState) -> tuple[Connection, HandOff]:
        found = [
            (connection, hand_off)
            for _, connection in sorted(self.connections.items())
            for hand_off in connection.hand_offs
            if hand_off.state in states
        ]
        return data.draw(st.sampled_from(found))

    def any_in(self, *states: HandOffState) -> bool:
        return any(h.state in states for c in self.connections.values() for h in c.hand_offs)

    @rule(request=st.sampled_from("abc"))
    def reserve(self, request: str) -> None:
        try:
            granted = self.reservations.reserve(request, 1000)
        except (Busy, ControlError):
            return
        assert granted.generation not in self.granted
        self.granted[granted.generation] = granted

    @precondition(lambda self: bool(cast("HandOffs", self).granted))
    @rule(data=st.data(), odd=st.sampled_from([*["none"] * 8, "rank", "tokens", "over"]))
    def claim(self, data: st.DataObject, odd: str) -> None:
        connection = self.connection(data)
        living = sorted(set(self.granted) - self.ended) if odd != "over" else sorted(self.ended)
        if not living:
            return
        granted = self.granted[data.draw(st.sampled_from(living))]
        claim = claim_of(
            granted, rank=7 if odd == "rank" else data.draw(st.sampled_from(self.ranks))
        )
        if odd == "tokens":
            claim = other(claim, tokens=2000)
        try:
            connection.claim(claim)
        except OutOfOrder:
            assert claim.generation in {h.claim.generation for h in connection.hand_offs}

    @precondition(lambda self: bool(cast("HandOffs", self).granted))
    @rule(data=st.data(), commit=st.booleans())
    def let_in(self, data: st.DataObject, commit: bool) -> None:
        """All ranks claim, each over a connection of its own: chance alone rarely comes so far."""
        living = sorted(set(self.granted) - self.ended)
        if not living:
            return
        granted = self.granted[data.draw(st.sampled_from(living))]
        for connection, rank in zip(self.connections.values(), self.ranks, strict=False):
            if granted.generation not in {h.claim.generation for h in connection.hand_offs}:
                connection.claim(claim_of(granted, rank=rank))
        self.deliver_all()
        for connection in self.connections.values():
            for hand_off in connection.hand_offs:
                if commit and hand_off.state is STATES.WRITING:
                    connection.sender.commit(hand_off)

    def travelling(self) -> list[tuple[Connection, bool]]:
        """Connections and directions in which something is on its way."""
        both = [(c, to) for _, c in sorted(self.connections.items()) for to in (False, True)]
        return [(c, to) for c, to in both if (c.to_decode if to else c.to_prefill)]

    @precondition(lambda self: bool(cast("HandOffs", self).travelling()))
    @rule(data=st.data())
    def deliver(self, data: st.DataObject) -> None:
        self.pass_on(*data.draw(st.sampled_from(self.travelling())))

    @precondition(lambda self: bool(cast("HandOffs", self).travelling()))
    @rule()
    def deliver_all(self) -> None:
        while travelling := self.travelling():
            self.pass_on(*travelling[0])

    def pass_on(self, connection: Connection, to_decode: bool) -> None:
        if not to_decode:
            connection.sender.receive(connection.to_prefill.popleft())
            return
        message = connection.to_decode.popleft()
        try:
            self.receiver.receive(connection.number, message)
        except OutOfOrder:
            # A claim of a generation that this connection has in quarantine, or in use.
            assert isinstance(message, Claim)
            self.disconnect(connection)

    @precondition(lambda self: cast("HandOffs", self).any_in(STATES.WRITING))
    @rule(data=st.data(), how=st.sampled_from(["progress", "commit", "abort", "abort later"]))
    def write(self, data: st.DataObject, how: str) -> None:
        connection, hand_off = self.hand_off(data, STATES.WRITING)
        if how == "progress":
            connection.sender.progress(hand_off, data.draw(st.integers(1, 9)))
        elif how == "commit":
            connection.sender.commit(hand_off)
        else:
            settled = how == "abort"
            if settled:
                connection.settle(hand_off)
            connection.sender.abort(hand_off, "preempted", settled=settled)

    @precondition(lambda self: cast("HandOffs", self).any_in(STATES.STOPPING))
    @rule(data=st.data())
    def drained(self, data: st.DataObject) -> None:
        connection, hand_off = self.hand_off(data, STATES.STOPPING)
        connection.settle(hand_off)
        connection.sender.stopped(hand_off)

    @precondition(lambda self: cast("HandOffs", self).any_in(STATES.CLAIMED))
    @rule(data=st.data())
    def give_up_early(self, data: st.DataObject) -> None:
        connection, hand_off = self.hand_off(data, STATES.CLAIMED)
        connection.sender.abort(hand_off, "the client left", settled=True)

    @precondition(lambda self: bool(cast("HandOffs", self).granted))
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        generation = data.draw(st.sampled_from(sorted(self.granted)))
        self.reservations.release(generation, "the client left")
        self.ended.add(generation)

    @precondition(lambda self: bool(cast("HandOffs", self).landed))
    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        generation = data.draw(st.sampled_from(sorted(self.landed)))
        if generation in self.taken | self.ended:
            with pytest.raises(GrantGone):
                self.reservations.take(generation)
        else:
            self.reservations.take(generation)
            self.taken.add(generation)

    @rule(data=st.data())
    def end_connection(self, data: st.DataObject) -> None:
        self.disconnect(self.connection(data))

    def disconnect(self, connection: Connection) -> None:
        del self.connections[connection.number]
        for writes in connection.writes:
            writes.lands_until = self.clock.now + LOST_WRITER_TIME
        self.gone += connection.writes
        self.receiver.disconnect(connection.number)
        connection.sender.disconnect()
        self.connect()

    @rule(seconds=st.sampled_from([1.0, 10.0, 31.0, 61.0]))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds
        self.reservations.expire()
        for connection in self.connections.values():
            connection.sender.expire()

    @rule(data=st.data())
    def heartbeat(self, data: st.DataObject) -> None:
        self.connection(data).sender.ping()

    @rule(data=st.data(), message=st.sampled_from(STRAYS))
    def stray(self, data: st.DataObject, message: Commit | Abort | Progress | Released) -> None:
        """A message for a generation that the connection never claimed."""
        connection = self.connection(data)
        mine = {h.claim.generation for h in connection.hand_offs}
        strange = sorted({*self.granted, 99} - mine)
        before = self.reservations.statistics()
        generation = data.draw(st.sampled_from(strange))
        self.receiver.receive(connection.number, replace(message, generation=generation))
        assert self.reservations.statistics() == before

    # --- what must hold ----------------------------------------------------------------------

    @invariant()
    def every_region_is_in_one_place(self) -> None:
        now = self.reservations.statistics()
        held = now.reserved + now.writing + now.landed + now.taken
        assert now.free + held + now.quarantined == now.regions
        known = [self.reservations.living(generation) for generation in self.granted]
        regions = [reservation.region for reservation in known if reservation is not None]
        assert len(set(regions)) == len(regions) == held

    @invariant()
    def nobody_gets_a_region_that_bytes_can_still_land_in(self) -> None:
        self.gone = [w for w in self.gone if (w.lands_until or 0) > self.clock.now]
        writing = [w for c in self.connections.values() for w in c.writes] + self.gone
        for writes in writing:
            generation = writes.hand_off.claim.generation
            for later in self.granted:
                reservation = self.reservations.living(later)
                if reservation is not None and reservation.region == writes.region:
                    assert later == generation, "two generations in one region"

        over = {w.region for w in writing if w.hand_off.claim.generation in self.ended}
        assert len(over) <= self.pool.quarantined

    @invariant()
    def every_lease_ends(self) -> None:
        if set(self.granted) - self.ended - self.taken:
            deadline = self.reservations.next_deadline
            assert deadline is not None
            assert self.clock.now < deadline <= self.clock.now + 30

    @invariant()
    def who_is_over_for_its_holder_is_over(self) -> None:
        for generation in self.ended:
            assert self.reservations.living(generation) is None
        for generation in set(self.granted) - self.ended:
            assert self.reservations.living(generation) is not None

    def teardown(self) -> None:
        if not hasattr(self, "reservations"):
            return
        for generation in self.granted:
            self.reservations.release(generation, "the end")
            self.ended.add(generation)
        self.deliver_all()
        for connection in self.connections.values():
            for hand_off in connection.hand_offs:
                connection.sender.stopped(hand_off)
                connection.sender.abort(hand_off, "the end", settled=True)
        self.deliver_all()
        self.clock.now += LOST_WRITER_TIME
        self.reservations.expire()
        now = self.reservations.statistics()
        assert now.free == now.regions, "counts are zero when all has ended"
        assert self.reservations.next_deadline is None
        assert all(connection.sender.open == 0 for connection in self.connections.values())


@pytest.mark.parametrize("examples", [100, pytest.param(2_000, marks=pytest.mark.soak)])
def test_pd_23_hand_offs_driven_at_random(examples: int) -> None:
    chosen = settings(
        deadline=None,
        max_examples=examples,
        stateful_step_count=60,
        suppress_health_check=[HealthCheck.too_slow],
    )
    run_state_machine_as_test(HandOffs, settings=chosen)
