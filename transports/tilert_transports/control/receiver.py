"""What prefill nodes say → what becomes of the reservations, and what they are answered.

The decode node's side of the hand-off, without I/O; the rules are in ``reservation.py``.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .claim_faults import prompt_fault, rank_fault, size_fault
from .errors import HandOffFailed, OutOfOrder, PeerLost
from .messages import Abort, Claim, Commit, Decline, Grant, Ping, Pong, Progress, Released
from .reservation import Progressed, State, Writer, WriterState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .errors import ControlError
    from .grant_id import GrantId
    from .messages import Message
    from .reservation import Reservation
    from .reservations import Reservations

__all__ = ("Receiver", "ReceiverStatistics")

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class ReceiverStatistics:
    """Counts since the start."""

    stale: int = 0
    """Messages for a generation that is over, or was never the peer's."""
    duplicates: int = 0
    """Commits that came twice."""
    refused: int = 0
    """Claims that were not let in."""
    aborted: int = 0
    """Hand-offs that prefill gave up."""
    lost: int = 0
    """Hand-offs whose writer went away."""


class Receiver:
    """Lets writers in, and follows each to its last word.

    :param ranks: all of them must commit before a cache has landed.
    :param send: queues a message for a connection.
    """

    def __init__(
        self,
        reservations: Reservations,
        ranks: Iterable[int],
        send: Callable[[int, Message], None],
    ) -> None:
        self._reservations = reservations
        self._ranks = frozenset(ranks)
        self._send = send
        self._names: dict[int, str] = {}
        self.statistics = ReceiverStatistics()
        reservations.refuse_late = self._refuse_unknown

    def connect(self, peer: int, name: str) -> None:
        """A connection has passed its handshake.

        :param peer: its number, never used before.
        :param name: the node's, for people.
        """
        self._names[peer] = name

    def disconnect(self, peer: int) -> None:
        """A connection has ended: so have the hand-offs that it was writing."""
        for generation in self._reservations.early.of(peer):
            self._take_back(peer, generation)
        name = self._names.pop(peer)
        for held, writer in self._reservations.written_by(peer):
            if writer.state is not WriterState.WRITING:
                continue
            self._reservations.lose(held, writer)
            if not held.is_over:
                self.statistics.lost += 1
                self._reservations.fail(
                    held, PeerLost(f"prefill node {name} has gone before its KV cache had landed")
                )

    def receive(self, peer: int, message: Message) -> None:
        """Take one message.

        :raises OutOfOrder: no message that prefill may send now; the connection is to be closed.
        """
        match message:
            case Claim():
                self._claim(peer, message)
            case Decline():
                self._decline(peer, message)
            case Progress() | Commit() | Abort() | Released():
                self._speak(peer, message)
            case Ping():
                for held, writer in self._reservations.written_by(peer):
                    if writer.state is WriterState.WRITING and held.state is State.WRITING:
                        self._reservations.prolong(held)
                self._send(peer, Pong(message.number))
            case Pong():
                pass  # that something came is all it says
            case Grant():
                raise OutOfOrder(f"{self._names[peer]} sends a GRANT; only a decode node grants")

    def _speak(self, peer: int, message: Progress | Commit | Abort | Released) -> None:
        generation = message.generation
        found = self._reservations.writer(generation, peer)
        if found is not None:
            self._follow(*found, message)
        elif isinstance(message, Abort | Released) and self._reservations.early.has(
            peer, generation
        ):
            self.statistics.aborted += 1
            self._take_back(peer, generation)
            self._send(peer, Released(generation))
        else:
            self._stale(peer, message)

    def _stale(self, peer: int, message: Progress | Commit | Abort | Released) -> None:
        self.statistics.stale += 1
        logger.info(
            "%s from %s for generation %d, which is over or not its own: ignored",
            message.TYPE,
            self._names[peer],
            message.generation,
        )

    def turn_away(self, grant: GrantId, error: ControlError) -> bool:
        """Fail the request that a prefill node came for, and that it will bring nothing for.

        False: nobody waits for one of that name, or its cache has landed already.
        """
        held = self._waiting(grant)
        return held is not None and self._reservations.turn_away(held.generation, error)

    def identify(self, peer: int, generation: int, tokens: int, last_token: int) -> None:
        """Learn whose prompt it is, where a claim had to be made before that was known."""
        found = self._reservations.writer(generation, peer)
        if found is not None:
            _, writer = found
            writer.claim = replace(writer.claim, tokens=tokens, last_token=last_token)

    def _decline(self, peer: int, decline: Decline) -> None:
        grant = decline.grant
        known = self._reservations.living(grant.generation) is not None
        if not known and grant.incarnation == self._reservations.incarnation:
            self._take_back(peer, grant.generation)
        fault = f"prefill node {self._names[peer]} gave up: {decline.reason}"
        if self.turn_away(grant, HandOffFailed(fault)):
            self.statistics.aborted += 1
        else:
            self.statistics.stale += 1

    def _waiting(self, grant: GrantId) -> Reservation | None:
        held = self._reservations.living(grant.generation)
        named = (self._reservations.incarnation, held.request if held is not None else None)
        return held if named == (grant.incarnation, grant.request) else None

    # --- a claim -----------------------------------------------------------------------------

    def _claim(self, peer: int, claim: Claim) -> None:
        if self._reservations.writer(claim.generation, peer) is not None:
            raise OutOfOrder(f"{self._names[peer]} claims generation {claim.generation} again")
        if self._reservations.early.has(peer, claim.generation):
            # An answer would name the generation alone: nobody could tell for which of the two.
            raise OutOfOrder(
                f"{self._names[peer]} claims generation {claim.generation} again, which waits for"
                " its reservation"
            )
        held = self._waiting(claim.grant)
        if held is None:
            if not self._reservations.keep_early(peer, claim):
                self._refuse_unknown(peer, claim)
            return
        self._let_in(peer, claim, held)

    def admit_early(self, generation: int) -> None:
        """A reservation is there: let in whoever has come before it."""
        held = self._reservations.living(generation)
        for peer, claim in self._reservations.early.take(generation):
            if held is None or held is not self._waiting(claim.grant):
                self._refuse_unknown(peer, claim)
            else:
                self._let_in(peer, claim, held)

    def refuse_early(self, generation: int) -> None:
        """No reservation of that name will come: whoever has come for it, or will, is told."""
        for peer, claim in self._reservations.early.end(generation):
            self._refuse_unknown(peer, claim)

    def _take_back(self, peer: int, generation: int) -> None:
        """``peer`` brings nothing for a grant that has not been given: the other ranks are told."""
        for other, claim in self._reservations.early.give_up(generation):
            if other != peer:
                self._refuse_unknown(other, claim)

    def _refuse_unknown(self, peer: int, claim: Claim) -> None:
        self.statistics.stale += 1
        gone = "the grant has expired, was released, or is another's"
        self._refuse(peer, claim, gone, unwanted=True)

    def _let_in(self, peer: int, claim: Claim, held: Reservation) -> None:
        fault = rank_fault(held, claim, self._ranks)
        if fault is not None:
            self._refuse(peer, claim, fault)
            return
        error = prompt_fault(held, claim) or size_fault(held, claim)
        if error is not None:
            # It is the right sender, and a second try would bring nothing else.
            self._refuse(peer, claim, error.message)
            self._reservations.fail(held, error)
            return
        held.writers[claim.rank] = Writer(peer, claim)
        held.state = State.WRITING
        self._reservations.prolong(held)
        self._send(
            peer,
            Grant(
                request=held.request,
                generation=held.generation,
                rank=claim.rank,
                region=held.region.id,
                offset=held.region.offset,
                nbytes=held.region.nbytes,
                ttl=self._reservations.settings.ttl,
            ),
        )

    def _refuse(self, peer: int, claim: Claim, reason: str, *, unwanted: bool = False) -> None:
        self.statistics.refused += 1
        logger.log(
            logging.INFO if unwanted else logging.WARNING,
            "claim of %s on request %s (generation %d, rank %d) refused: %s",
            self._names[peer],
            claim.request,
            claim.generation,
            claim.rank,
            reason,
        )
        self._send(peer, Abort(claim.generation, reason, unwanted=unwanted))

    # --- what follows a claim ----------------------------------------------------------------

    def _follow(
        self, held: Reservation, writer: Writer, message: Progress | Commit | Abort | Released
    ) -> None:
        if writer.committed:
            # It has had its last word. A second one changes nothing, whatever it says.
            if isinstance(message, Commit):
                self.statistics.duplicates += 1
            else:
                self._stale(writer.peer, message)
            return
        match message:
            case Progress():
                self._progress(held, writer, message)
            case Commit():
                self._commit(held, writer, message)
            case Abort():
                self._give_up(held, writer, message.reason, settled=message.settled)
            case Released():
                self._give_up(held, writer, "it stopped before it committed", settled=True)

    def _progress(self, held: Reservation, writer: Writer, progress: Progress) -> None:
        if held.is_over:
            self._stale(writer.peer, progress)
        elif progress.planes > writer.planes:
            writer.planes = progress.planes
            self._reservations.tell(Progressed(held.generation, writer.claim.rank, progress.planes))

    def _give_up(self, held: Reservation, writer: Writer, reason: str, *, settled: bool) -> None:
        over = held.is_over
        if settled:
            self._reservations.stopped(held, writer)
        if over:
            return
        if settled:
            self._send(writer.peer, Released(held.generation))
        self.statistics.aborted += 1
        name = self._names[writer.peer]
        self._reservations.fail(held, HandOffFailed(f"prefill node {name} gave up: {reason}"))

    def _commit(self, held: Reservation, writer: Writer, commit: Commit) -> None:
        writer.committed = True
        writer.checksum = commit.checksum
        over = held.is_over
        self._reservations.stopped(held, writer)
        if over:
            self._stale(writer.peer, commit)
        elif commit.nbytes != writer.claim.nbytes:
            fault = f"rank {writer.claim.rank} wrote {commit.nbytes} of {writer.claim.nbytes} bytes"
            self._send(writer.peer, Abort(held.generation, fault))
            self._reservations.fail(held, HandOffFailed(fault))
        else:
            self._send(writer.peer, Released(held.generation))
            if self._ranks.issubset(r for r, w in held.writers.items() if w.committed):
                held.state = State.LANDED
                self._reservations.prolong(held)
                self._reservations.tell(held.landed())
