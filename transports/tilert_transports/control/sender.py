"""The prefill node's side of one connection's hand-offs, without I/O.

::

    CLAIMED ─► WRITING ─► COMMITTED ─► DONE
       │          ├─► STOPPING ──────► FAILED     the other side gave up, or the lease ran out
       └──────────┴───────────────────► FAILED

Rules:

1. Nothing is written before a GRANT whose request, generation and rank are the claimed ones, and
   nothing outside of what it grants.
2. Writing ends when the lease does. It runs from the moment the claim, or a ping that was
   answered, was *sent*: so it ends here before it ends at the decode node.
3. Who writes says last that it has stopped: COMMIT, ABORT (settled), or RELEASED.
4. The decode node's last word is RELEASED or ABORT. It comes once for every claim; until then the
   generation is known here, so that a message for another one is a fault and no riddle.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from .errors import GrantGone, HandOffFailed, OutOfOrder, PeerLost
from .messages import Abort, Claim, Commit, Decline, Grant, Ping, Pong, Progress, Released

if TYPE_CHECKING:
    from collections.abc import Callable

    from .errors import ControlError
    from .grant_id import GrantId
    from .messages import Message

__all__ = ("HandOff", "HandOffState", "Sender")


class HandOffState(Enum):
    """Where a hand-off stands."""

    CLAIMED = "claimed"
    WRITING = "writing"
    STOPPING = "stopping"
    """Over, but writes that were begun may still land."""
    COMMITTED = "committed"
    """All has landed; the decode node has not said yet that it took it."""
    DONE = "done"
    FAILED = "failed"


@dataclass(slots=True)
class HandOff:
    """One generation, as the sender knows it. ``changed`` is called after each change of state."""

    claim: Claim
    changed: Callable[[], None]
    claimed_at: float
    state: HandOffState = HandOffState.CLAIMED
    grant: Grant | None = None
    """Where to write, once the decode node has answered."""
    deadline: float = 0.0
    """When writing must have ended; 0 before the grant."""
    error: ControlError | None = None
    """Why it is STOPPING or FAILED."""

    @property
    def is_over(self) -> bool:
        """Whether both sides are through with it."""
        return self.state in (HandOffState.DONE, HandOffState.FAILED)


class Sender:
    """Claims grants, and follows each hand-off to its end. Belongs to one thread.

    :param send: queues a message.
    :param clock: monotonic seconds.
    """

    def __init__(
        self, node: str, send: Callable[[Message], None], clock: Callable[[], float]
    ) -> None:
        self._node = node
        self._send = send
        self._clock = clock
        self._open: dict[int, HandOff] = {}
        self._unanswered = set[int]()
        self._pings: dict[int, float] = {}
        self._number = 0

    @property
    def open(self) -> int:
        """Hand-offs that are not over."""
        return len(self._open)

    # --- the writer's side -------------------------------------------------------------------

    def claim(self, claim: Claim, changed: Callable[[], None]) -> HandOff:
        """Ask for leave to write.

        :raises OutOfOrder: this connection has claimed the generation already.
        """
        if claim.generation in self._open or claim.generation in self._unanswered:
            raise OutOfOrder(f"generation {claim.generation} has been claimed already")
        hand_off = HandOff(claim, changed, self._clock())
        self._open[claim.generation] = hand_off
        self._unanswered.add(claim.generation)
        self._send(claim)
        return hand_off

    def decline(self, grant: GrantId, reason: str) -> None:
        """Say that nothing will come for ``grant``, which has not been claimed."""
        self._send(Decline.of(grant, reason))

    def progress(self, hand_off: HandOff, planes: int) -> None:
        """Say that the first ``planes`` planes have landed.

        :raises OutOfOrder: there is no leave to write.
        """
        self._writing(hand_off)
        self._send(Progress(hand_off.claim.generation, planes))

    def commit(self, hand_off: HandOff, checksum: int | None = None) -> None:
        """Say that everything claimed has landed; nothing may be written afterwards.

        :raises OutOfOrder: there is no leave to write.
        """
        self._writing(hand_off)
        self._send(Commit(hand_off.claim.generation, hand_off.claim.nbytes, checksum))
        self._move(hand_off, HandOffState.COMMITTED)

    def abort(self, hand_off: HandOff, reason: str, *, settled: bool) -> None:
        """Give it up. Nothing happens if it is over, or committed.

        :param settled: nothing can land any more. If not, ``stopped`` must follow.
        """
        if hand_off.state not in (HandOffState.CLAIMED, HandOffState.WRITING):
            return
        self._send(Abort(hand_off.claim.generation, reason, settled))
        hand_off.error = HandOffFailed(f"given up by this node: {reason}")
        if settled:
            self._close(hand_off, HandOffState.FAILED)
        else:
            self._move(hand_off, HandOffState.STOPPING)

    def stopped(self, hand_off: HandOff) -> None:
        """Say that nothing of a STOPPING hand-off can land any more. Idempotent."""
        if hand_off.state is HandOffState.STOPPING:
            self._send(Released(hand_off.claim.generation))
            self._close(hand_off, HandOffState.FAILED)

    # --- the connection's side ---------------------------------------------------------------

    def ping(self) -> None:
        """Ask for a sign of life, which renews the leases of all that is being written."""
        self._number += 1
        self._pings[self._number] = self._clock()
        self._send(Ping(self._number))

    def receive(self, message: Message) -> None:
        """Take one message.

        :raises OutOfOrder: it is none that a decode node may send now, or a grant that does not
            fit its claim; the connection is to be closed.
        """
        match message:
            case Grant():
                self._granted(message)
            case Released():
                self._released(message)
            case Abort():
                self._aborted(message)
            case Ping():
                self._send(Pong(message.number))
            case Pong():
                self._renewed(message)
            case Claim() | Decline() | Progress() | Commit():
                raise OutOfOrder(f"{self._node} sends a {message.TYPE.upper()}; only prefill does")

    def disconnect(self) -> None:
        """The connection has ended, and with it all hand-offs."""
        for hand_off in tuple(self._open.values()):
            hand_off.error = hand_off.error or PeerLost(
                f"decode node {self._node} has gone before request {hand_off.claim.request} was"
                " handed over"
            )
            self._close(hand_off, HandOffState.FAILED)

    @property
    def next_deadline(self) -> float | None:
        """When ``expire`` has something to do; None: never, as things stand."""
        writing = (h.deadline for h in self._open.values() if h.state is HandOffState.WRITING)
        return min(writing, default=None)

    def expire(self) -> None:
        """Stop what is being written under a lease that has run out."""
        now = self._clock()
        for hand_off in tuple(self._open.values()):
            if hand_off.state is HandOffState.WRITING and hand_off.deadline <= now:
                self.abort(hand_off, "the lease ran out", settled=False)

    def _granted(self, grant: Grant) -> None:
        self._known(grant)
        hand_off = self._open.get(grant.generation)
        if hand_off is None:
            return  # given up since it was claimed
        claim = hand_off.claim
        for name, got, claimed in (
            ("request", grant.request, claim.request),
            ("rank", grant.rank, claim.rank),
        ):
            if got != claimed:
                raise OutOfOrder(
                    f"{self._node} grants {name} {got} for generation {grant.generation}, which was"
                    f" claimed with {claimed}"
                )
        if grant.nbytes < claim.nbytes:
            raise OutOfOrder(f"{self._node} grants {grant.nbytes} of {claim.nbytes} bytes")
        if hand_off.state is not HandOffState.CLAIMED:
            raise OutOfOrder(f"{self._node} grants generation {grant.generation} twice")
        hand_off.grant = grant
        hand_off.deadline = hand_off.claimed_at + grant.ttl
        self._move(hand_off, HandOffState.WRITING)

    def _released(self, released: Released) -> None:
        self._known(released)
        self._unanswered.remove(released.generation)
        hand_off = self._open.get(released.generation)
        if hand_off is None:
            return
        if hand_off.state is not HandOffState.COMMITTED:
            raise OutOfOrder(
                f"{self._node} releases generation {released.generation}, which is not committed"
            )
        self._close(hand_off, HandOffState.DONE)

    def _aborted(self, abort: Abort) -> None:
        self._known(abort)
        self._unanswered.remove(abort.generation)
        hand_off = self._open.get(abort.generation)
        if hand_off is None or hand_off.state is HandOffState.STOPPING:
            return
        kind = GrantGone if abort.unwanted else HandOffFailed
        hand_off.error = kind(f"decode node {self._node} gave up: {abort.reason}")
        if hand_off.state is HandOffState.WRITING:
            self._move(hand_off, HandOffState.STOPPING)
        else:
            self._close(hand_off, HandOffState.FAILED)

    def _renewed(self, pong: Pong) -> None:
        asked = self._pings.pop(pong.number, None)
        if asked is None:
            raise OutOfOrder(f"{self._node} answers ping {pong.number}, which was never sent")
        for hand_off in self._open.values():
            if hand_off.grant is not None and hand_off.state is HandOffState.WRITING:
                hand_off.deadline = max(hand_off.deadline, asked + hand_off.grant.ttl)

    def _known(self, message: Grant | Released | Abort) -> None:
        if message.generation not in self._unanswered:
            raise OutOfOrder(
                f"{self._node} sends {message.TYPE.upper()} for generation {message.generation},"
                " which is not claimed"
            )

    def _writing(self, hand_off: HandOff) -> None:
        if hand_off.state is not HandOffState.WRITING:
            raise hand_off.error or OutOfOrder(
                f"generation {hand_off.claim.generation} is {hand_off.state.value}, not writing"
            )

    def _move(self, hand_off: HandOff, state: HandOffState) -> None:
        hand_off.state = state
        hand_off.changed()

    def _close(self, hand_off: HandOff, state: HandOffState) -> None:
        del self._open[hand_off.claim.generation]
        self._move(hand_off, state)
