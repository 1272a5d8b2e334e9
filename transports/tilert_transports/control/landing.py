"""Reservations that tasks can wait for: the decode node's handle on a KV cache on its way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilert_stream.completion import Completion

from .errors import GrantGone, HandOffFailed
from .reservation import Failed, Landed, Progressed
from .reservations import Reservations

if TYPE_CHECKING:
    from collections.abc import Callable

    from .errors import ControlError
    from .messages import Message
    from .prompt import PromptIdentity
    from .regions import RegionPool
    from .reservation import Event, Granted
    from .reservations import ReservationSettings, ReservationStatistics

__all__ = ("Landing", "Landings")


class Landing:
    """One reservation, in the hands of the request that made it."""

    def __init__(self, granted: Granted, reservations: Reservations) -> None:
        self.granted = granted
        """What the router takes to prefill."""
        self.planes: dict[int, int] = {}
        """How many planes have landed, by rank, where the sender says so."""
        self.on_failed: Callable[[], None] = _nothing
        """Called once if it ends before it is taken, and not by ``release``."""
        self.failure: ControlError | None = None
        """Why it ended like that."""
        self.has_landed = False
        """Whether the whole cache has come."""
        self._reservations = reservations
        self._outcome = Completion[Landed]()

    async def wait(self) -> Landed:
        """Wait until the whole cache has landed. Always a checkpoint.

        :raises HandOffFailed: a prefill node gave it up, or this node released it.
        :raises PromptMismatch: what a prefill node has belongs to another prompt.
        :raises HandshakeRefused: the prefill node that came for it does not fit.
        :raises PeerLost: a prefill node has gone.
        :raises GrantGone: the lease ran out.
        """
        return await self._outcome.wait()

    def take(self) -> Landed:
        """Take the cache, to read it: once. Its region is held until ``release``.

        :raises GrantGone: it was taken before, or is over.
        :raises OutOfOrder: it has not landed yet.
        """
        return self._reservations.take(self.granted.generation)

    def renew(self) -> None:
        """Give the lease its full time again.

        :raises GrantGone: it is over.
        """
        self._reservations.renew(self.granted.generation)

    def claim(self) -> None:
        """End the lease: the request has come, and waits for as long as it may itself.

        :raises GrantGone: it is over.
        """
        self._reservations.claim(self.granted.generation)

    def release(self, reason: str) -> None:
        """Give the region back, in any state. Idempotent; who waits is told."""
        self._outcome.fail(
            HandOffFailed(f"the hand-off of {self.granted.request} was released: {reason}")
        )
        self._reservations.release(self.granted.generation, reason)

    def turn_away(self, error: ControlError) -> bool:
        """Fail it: nothing will come. False if it is over, or the cache has landed already."""
        return self._reservations.turn_away(self.granted.generation, error)

    def tell(self, event: Event) -> None:
        """Learn how it goes."""
        match event:
            case Progressed():
                self.planes[event.rank] = event.planes
            case Landed():
                self.has_landed = True
                self._outcome.set(event)
            case Failed():
                self.failure = event.error
                self._outcome.fail(event.error)
                self.on_failed()


class Landings:
    """All of a decode node. Made, and used, in its event loop.

    The parameters are those of ``Reservations``.
    """

    def __init__(
        self,
        pool: RegionPool,
        *,
        incarnation: str,
        max_seq_len: int,
        send: Callable[[int, Message], None],
        clock: Callable[[], float],
        sooner: Callable[[], None],
        settings: ReservationSettings | None = None,
    ) -> None:
        self.reservations = Reservations(
            pool,
            incarnation=incarnation,
            max_seq_len=max_seq_len,
            send=send,
            tell=self._tell,
            clock=clock,
            sooner=sooner,
            settings=settings,
        )
        self._landings: dict[int, Landing] = {}

    def reserve(
        self,
        request: str,
        max_tokens: int,
        prompt: PromptIdentity | None = None,
        *,
        generation: int | None = None,
    ) -> Landing:
        """Hold a landing region for ``request``.

        :param max_tokens: prompt and answer together.
        :param prompt: the only one whose cache may land; None: any.
        :param generation: what the router would have it called; see ``Reservations.reserve``.
        :raises ~tilert_stream.errors.ContextLengthExceeded: they can never fit.
        :raises RequestInUse: a live request has this id.
        :raises ~tilert_stream.errors.Busy: no region is free.
        """
        granted = self.reservations.reserve(request, max_tokens, prompt, generation=generation)
        landing = Landing(granted, self.reservations)
        self._landings[granted.generation] = landing
        self._forget_ended()
        return landing

    def get(self, generation: int) -> Landing:
        """The landing of a grant that has come back with a request.

        :raises GrantGone: it is over, or was never given.
        """
        landing = self._landings.get(generation)
        if landing is None or self.reservations.living(generation) is None:
            raise GrantGone(f"grant {generation} has expired or was released; reserve again")
        return landing

    def statistics(self) -> ReservationStatistics:
        """How many landing regions are in each state."""
        return self.reservations.statistics()

    def _tell(self, event: Event) -> None:
        self._landings[event.generation].tell(event)

    def _forget_ended(self) -> None:
        ended = [g for g in self._landings if self.reservations.living(g) is None]
        for generation in ended:
            del self._landings[generation]


def _nothing() -> None:
    """Nobody wants to know."""
