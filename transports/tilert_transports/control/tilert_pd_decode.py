"""Our decode node to TileRT's stock prefill connector: its connections in, KV caches out.

A cache and the request that wants it come in any order, each on a connection of its own; the id
joins them. What came to nothing is remembered for a while: an end that the request has yet to learn
of, and a request that has ended before its cache came.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tilert_stream.completion import Completion

from .errors import HandOffFailed, RequestInUse
from .landing import Landing
from .receiver import Receiver
from .reservation import Failed, Landed
from .reservations import Reservations
from .tilert_pd import SENDER_RANK

if TYPE_CHECKING:
    from collections.abc import Callable

    from .errors import ControlError
    from .messages import Message
    from .regions import LandingRegion, RegionPool
    from .reservation import Event
    from .reservations import ReservationSettings
    from .tilert_pd import TilertHello, TilertRequest
    from .tilert_pd_session import TilertSession

__all__ = ("Arrival", "TilertInbox")

REMEMBERED: Final = 1024
"""Ids whose hand-over, or whose request, has ended before the other one came."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A KV cache that a TileRT prefill has handed over."""

    request: TilertRequest
    landing: Landing
    """To take it, and to give its region back."""


class TilertInbox:
    """All that arrives from TileRT prefills, by request id. Made, and used, in the event loop.

    :param hello: what to say to a new connection that gets this region.
    :param clock: monotonic seconds.
    :param sooner: is called when the next deadline may have come closer.
    :param settings: ``ttl`` is what a transfer may take, and then what a cache waits to be taken.
    """

    def __init__(
        self,
        pool: RegionPool,
        hello: Callable[[LandingRegion], TilertHello],
        *,
        incarnation: str,
        max_seq_len: int,
        clock: Callable[[], float],
        sooner: Callable[[], None],
        settings: ReservationSettings,
    ) -> None:
        self.hello = hello
        self.max_seq_len = max_seq_len
        self.incarnation = incarnation
        self.clock = clock
        self.patience = settings.ttl
        """Seconds that a connection may say nothing."""
        self.reservations = Reservations(
            pool,
            incarnation=incarnation,
            max_seq_len=max_seq_len,
            send=self._send,
            tell=self._tell,
            clock=clock,
            sooner=sooner,
            settings=settings,
        )
        self.receiver = Receiver(self.reservations, (SENDER_RANK,), self._send)
        self._sessions: dict[int, TilertSession] = {}
        self._landings: dict[int, Landing] = {}
        self._requests: dict[int, TilertRequest] = {}
        self._latest: dict[str, int] = {}
        self._waiting: dict[str, Completion[Arrival]] = {}
        self._ended: OrderedDict[str, ControlError | None] = OrderedDict()
        """Why a hand-over failed; None: nobody wants one."""

    async def receive(self, rid: str) -> Arrival:
        """Wait for the KV cache of ``rid``; it is then the caller's. Always a checkpoint.

        :raises RequestInUse: somebody waits for it already.
        :raises PeerLost: its sender has gone.
        :raises HandOffFailed: it was refused.
        :raises GrantGone: its sender took too long, or nobody came for it in time.
        """
        if rid in self._waiting:
            raise RequestInUse(f"request {rid} is waited for already")
        failure = self._ended.pop(rid, None)
        if failure is not None:
            raise failure
        self._waiting[rid] = completion = Completion[Arrival]()
        generation = self._latest.get(rid)
        if generation is not None:
            self._deliver(generation)
        try:
            arrival = await completion.wait()
        finally:
            del self._waiting[rid]
        self._forget(arrival.landing.granted.generation)
        return arrival

    def discard(self, rid: str) -> bool:
        """Give up the KV cache of ``rid``, here or yet to come. Sync; whether one was here."""
        generation = self._latest.get(rid)
        if generation is None:
            self._remember(rid, None)
            return False
        self._landings[generation].release("the request has ended")
        self._forget(generation)
        return True

    def decline(self, rid: str, error: ControlError) -> bool:
        """Fail the request ``rid``, here or yet to come, for which prefill has nothing. Sync.

        False: its KV cache is here, or on a connection that will tell how it ends.
        """
        if rid in self._latest:
            return False
        waiting = self._waiting.get(rid)
        if waiting is not None:
            waiting.fail(error)
        else:
            self._remember(rid, error)
        return True

    def _remember(self, rid: str, end: ControlError | None) -> None:
        self._ended[rid] = end
        self._ended.move_to_end(rid)
        if len(self._ended) > REMEMBERED:
            self._ended.popitem(last=False)

    # --- for the sessions --------------------------------------------------------------------

    def admit(self, session: TilertSession, number: int) -> Landing:
        """Give a new connection a region.

        :raises ~tilert_stream.errors.Busy: none is free.
        """
        granted = self.reservations.reserve(f"connection {number}", self.max_seq_len)
        landing = Landing(granted, self.reservations)
        self._landings[granted.generation] = landing
        self._sessions[number] = session
        self.receiver.connect(number, f"tilert-{number}")
        return landing

    def leave(self, number: int) -> None:
        """A connection has ended."""
        if number in self._sessions:
            self.receiver.disconnect(number)
            del self._sessions[number]

    def announce(self, number: int, generation: int, request: TilertRequest) -> None:
        """Learn which request a generation is for; an earlier attempt at it is given up."""
        self.receiver.identify(number, generation, request.seq_len, request.last_prompt_token)
        earlier = self._latest.get(request.rid)
        self._requests[generation] = request
        self._latest[request.rid] = generation
        if earlier is not None:
            self._landings[earlier].release(f"another attempt at {request.rid} has begun")
            self._forget(earlier)
        if request.rid in self._ended and self._ended.pop(request.rid) is None:
            self.refuse(generation, HandOffFailed(f"request {request.rid} has ended"))

    def refuse(self, generation: int, error: ControlError) -> None:
        """Give up a generation whose request cannot be taken; who waits for it is told."""
        landing = self._landings.get(generation)
        if landing is not None:
            landing.release(error.message)
            self._fail(generation, error)

    def _send(self, peer: int, message: Message) -> None:
        self._sessions[peer].send(message)

    def _tell(self, event: Event) -> None:
        landing = self._landings.get(event.generation)
        if landing is not None:
            landing.tell(event)
        if isinstance(event, Landed):
            self._deliver(event.generation)
        elif isinstance(event, Failed):
            self._fail(event.generation, event.error)

    def _deliver(self, generation: int) -> None:
        """Hand a cache that has landed to who waits for it, if somebody does."""
        request, landing = self._requests[generation], self._landings[generation]
        waiting = self._waiting.get(request.rid)
        if waiting is not None and landing.has_landed:
            waiting.set(Arrival(request, landing))

    def _fail(self, generation: int, error: ControlError) -> None:
        request = self._requests.get(generation)
        if request is not None:
            waiting = self._waiting.get(request.rid)
            if waiting is not None:
                waiting.fail(error)
            else:
                self._remember(request.rid, error)
        self._forget(generation)

    def _forget(self, generation: int) -> None:
        self._landings.pop(generation, None)
        request = self._requests.pop(generation, None)
        if request is not None and self._latest.get(request.rid) == generation:
            del self._latest[request.rid]
