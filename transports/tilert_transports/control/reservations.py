"""All reservations of one decode node: what its HTTP side asks for, and how each of them ends.

The rules are in ``reservation.py``. Everything here is synchronous, and belongs to the event
loop's thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tilert_stream.errors import Busy, ContextLengthExceeded

from .early_claims import EarlyClaims
from .errors import GrantGone, OutOfOrder, RequestInUse
from .messages import Abort
from .reservation import Failed, Granted, Reservation, State, WriterState

if TYPE_CHECKING:
    from collections.abc import Callable

    from .errors import ControlError
    from .messages import Claim, Message
    from .prompt import PromptIdentity
    from .regions import RegionPool
    from .reservation import Event, Landed, Writer

__all__ = ("ReservationSettings", "ReservationStatistics", "Reservations")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationSettings:
    """Times in seconds."""

    ttl: float = 30.0
    """A reservation's lease: each renewal, and each ping of its writers, gives it so much."""
    max_lifetime: float = 600.0
    """From the reservation until its cache is taken, however often it is renewed."""
    lost_writer_time: float = 60.0
    """After a writer's connection has ended, its last bytes may land for so long."""


@dataclass(frozen=True, slots=True)
class ReservationStatistics:
    """How many landing regions are in each state."""

    regions: int
    free: int
    reserved: int
    writing: int
    landed: int
    taken: int
    quarantined: int
    expired: int
    """Reservations whose lease ran out, since the start."""


class Reservations:
    """Who may write to which landing region, and until when.

    :param max_seq_len: tokens that a region takes.
    :param send: queues a message for a connection.
    :param tell: learns how a reservation went, unless its holder ended it.
    :param clock: monotonic seconds.
    :param sooner: is called when ``next_deadline`` may have come closer.
    """

    def __init__(
        self,
        pool: RegionPool,
        *,
        incarnation: str,
        max_seq_len: int,
        send: Callable[[int, Message], None],
        tell: Callable[[Event], None],
        clock: Callable[[], float],
        sooner: Callable[[], None],
        settings: ReservationSettings | None = None,
    ) -> None:
        self.incarnation = incarnation
        self.settings = settings or ReservationSettings()
        self.tell = tell
        self._pool = pool
        self._max_seq_len = max_seq_len
        self._send = send
        self._clock = clock
        self._sooner = sooner
        self.early = EarlyClaims()
        self.refuse_late: Callable[[int, Claim], object] = _ignore
        """Is called with a claim, and its peer, whose reservation has not come."""
        self._held: dict[int, Reservation] = {}
        self._generation = 0
        self._expired = 0

    @property
    def region_bytes(self) -> int:
        """The size of each landing region."""
        return self._pool.nbytes

    def reserve(
        self,
        request: str,
        max_tokens: int,
        prompt: PromptIdentity | None = None,
        *,
        generation: int | None = None,
    ) -> Granted:
        """Hold a landing region for ``request``.

        :param max_tokens: prompt and answer together.
        :param prompt: the only one whose cache may land; None: any.
        :param generation: what the router would have it called, from ``FORETOLD`` on; if that is
            in use, over, or claimed in vain it gets another name, as it does without one.
        :raises ~tilert_stream.errors.ContextLengthExceeded: they can never fit.
        :raises RequestInUse: a live request has this id.
        :raises ~tilert_stream.errors.Busy: no region is free.
        """
        if not 1 <= max_tokens <= self._max_seq_len:
            raise ContextLengthExceeded(
                f"the request needs {max_tokens} tokens; this decode node holds 1 to"
                f" {self._max_seq_len} (--max-seq-len)"
            )
        if any(held.request == request and not held.is_over for held in self._held.values()):
            raise RequestInUse(f"request {request} already holds a landing region here")
        region = self._pool.acquire()
        if region is None:
            raise Busy(
                f"all {self._pool.count} landing regions are in use"
                f" ({self._pool.quarantined} quarantined); try again later",
                retry_after=1,
            )
        if generation is None or generation in self._held or self.early.is_spent(generation):
            self._generation += 1
            generation = self._generation
        now = self._clock()
        self._held[generation] = Reservation(
            request=request,
            generation=generation,
            region=region,
            max_tokens=max_tokens,
            deadline=now + self.settings.ttl,
            dies_at=now + self.settings.max_lifetime,
            prompt=prompt,
        )
        self._sooner()
        return Granted(request, self.incarnation, generation, region, self.settings.ttl)

    def renew(self, generation: int) -> None:
        """Give a reservation's lease its full time again.

        :raises GrantGone: it is over.
        """
        held = self.living(generation)
        if held is None:
            raise GrantGone(f"grant {generation} has expired or was released; reserve again")
        self.prolong(held)

    def claim(self, generation: int) -> None:
        """End a reservation's lease: from now on it lives until ``release``.

        :raises GrantGone: it is over.
        """
        held = self.living(generation)
        if held is None:
            raise GrantGone(f"grant {generation} has expired or was released; reserve again")
        held.claimed = True

    def take(self, generation: int) -> Landed:
        """Take what has landed, to read it: once. Its region is held until ``release``.

        :raises GrantGone: it was taken before, or is over.
        :raises OutOfOrder: it has not landed yet.
        """
        held = self.living(generation)
        if held is None or held.state is State.TAKEN:
            raise GrantGone(
                f"grant {generation} has expired, was released, or its KV cache was taken before;"
                " reserve again"
            )
        if held.state is not State.LANDED:
            raise OutOfOrder(f"the KV cache of grant {generation} has not landed yet")
        held.state = State.TAKEN
        return held.landed()

    def release(self, generation: int, reason: str) -> None:
        """Give a reservation back, in any state. Idempotent; ``tell`` is not called.

        A writer that is still at work is asked to stop, with ``reason``.
        """
        held = self.living(generation)
        if held is not None:
            self._end(held, Abort(generation, reason, unwanted=True))

    @property
    def next_deadline(self) -> float | None:
        """When ``expire`` has something to do; None: never, as things stand."""
        times = [held.deadline for held in self._held.values() if held.is_leased]
        times += [writer.lost_at + self.settings.lost_writer_time for _, writer in self._lost()]
        if self.early.next_deadline is not None:
            times.append(self.early.next_deadline)
        return min(times, default=None)

    def keep_early(self, peer: int, claim: Claim) -> bool:
        """Keep a claim whose reservation may be on its way; False: it is not."""
        if claim.incarnation != self.incarnation:
            return False
        kept = self.early.keep(peer, claim, self._clock())
        if kept:
            self._sooner()
        return kept

    def expire(self) -> None:
        """End the reservations whose lease has run out, and quarantines of writers long gone."""
        now = self._clock()
        for peer, claim in self.early.late(now):
            self.refuse_late(peer, claim)
        for held, writer in self._lost():
            if writer.lost_at + self.settings.lost_writer_time <= now:
                self.stopped(held, writer)
        for held in tuple(self._held.values()):
            if held.is_leased and held.deadline <= now:
                self._expired += 1
                fault = (
                    "nobody took it" if held.state is State.LANDED else "its KV cache never came"
                )
                self.fail(held, GrantGone(f"the grant of {held.request} expired: {fault}"))

    def statistics(self) -> ReservationStatistics:
        """Gauges of now."""
        states = [held.state for held in self._held.values()]
        return ReservationStatistics(
            regions=self._pool.count,
            free=self._pool.free,
            reserved=states.count(State.RESERVED),
            writing=states.count(State.WRITING),
            landed=states.count(State.LANDED),
            taken=states.count(State.TAKEN),
            quarantined=self._pool.quarantined,
            expired=self._expired,
        )

    # --- for the receiver --------------------------------------------------------------------

    def living(self, generation: int) -> Reservation | None:
        """A reservation that is not over."""
        held = self._held.get(generation)
        return None if held is None or held.is_over else held

    def writer(self, generation: int, peer: int) -> tuple[Reservation, Writer] | None:
        """What ``peer`` was let in to write, quarantined or not."""
        held = self._held.get(generation)
        writer = None if held is None else held.writer_of(peer)
        return None if held is None or writer is None else (held, writer)

    def written_by(self, peer: int) -> list[tuple[Reservation, Writer]]:
        """All that ``peer`` was let in to write."""
        found = [(held, held.writer_of(peer)) for held in self._held.values()]
        return [(held, writer) for held, writer in found if writer is not None]

    def prolong(self, held: Reservation) -> None:
        """Renew a lease, within the reservation's longest life."""
        held.deadline = min(self._clock() + self.settings.ttl, held.dies_at)

    def lose(self, held: Reservation, writer: Writer) -> None:
        """Note that a writer's connection has ended, and when."""
        if writer.state is WriterState.WRITING:
            writer.state = WriterState.LOST
            writer.lost_at = self._clock()
            self._sooner()

    def stopped(self, held: Reservation, writer: Writer) -> None:
        """Note that nothing of a writer can land any more; the last one ends the quarantine."""
        writer.state = WriterState.STOPPED
        if held.state is State.QUARANTINED and not held.may_be_written:
            self._forget(held)

    def fail(self, held: Reservation, error: ControlError) -> None:
        """End a reservation, and tell its holder why."""
        self._end(held, Abort(held.generation, error.message))
        self.tell(Failed(held.generation, held.request, error))

    def turn_away(self, generation: int, error: ControlError) -> bool:
        """Fail a reservation that nothing will come for.

        False: it is over, or its cache has landed already.
        """
        held = self.living(generation)
        if held is None or held.state not in (State.RESERVED, State.WRITING):
            return False
        self.fail(held, error)
        return True

    def _end(self, held: Reservation, word: Abort) -> None:
        self.early.end(held.generation)
        if not held.may_be_written:
            self._forget(held)
            return
        held.state = State.QUARANTINED
        self._pool.quarantine(held.region)
        for writer in held.writers.values():
            if writer.state is WriterState.WRITING:
                self._send(writer.peer, word)

    def _forget(self, held: Reservation) -> None:
        held.state = State.ENDED
        del self._held[held.generation]
        self._pool.release(held.region)

    def _lost(self) -> list[tuple[Reservation, Writer]]:
        return [
            (held, writer)
            for held in self._held.values()
            for writer in held.writers.values()
            if writer.state is WriterState.LOST
        ]


def _ignore(_peer: int, _claim: Claim) -> None:
    """Nobody lets writers in yet."""
