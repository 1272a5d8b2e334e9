"""Our decode node to TileRT's stock prefill connector: connections in, KV caches out.

TileRT's sender never reads what a decode node answers, so one thing only keeps it from writing: no
hello. Every connection is therefore given a landing region of its own before its hello leaves, and
is closed without one when none is free. Whatever that peer does then, it meets nobody else's cache,
and its region is used again only after it has said ``done`` or has been gone for long enough.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tilert_stream.completion import Completion
from tilert_stream.errors import Busy

from .errors import HandOffFailed, OutOfOrder, PeerLost, RequestInUse
from .frames import FrameReader
from .landing import Landing
from .messages import Abort, Claim, Commit
from .receiver import Receiver
from .reservation import Failed, Landed
from .reservations import Reservations
from .tilert_pd import TilertDone, TilertHello, TilertRequest, encode

if TYPE_CHECKING:
    from collections.abc import Callable

    from .errors import ControlError
    from .frames import JSONObject
    from .link import Post
    from .messages import Message
    from .regions import LandingRegion, RegionPool
    from .reservation import Event
    from .reservations import ReservationSettings

__all__ = ("Arrival", "TilertInbox", "TilertSession")

logger = logging.getLogger(__name__)

SENDER_RANK = 0
"""The latent is the same on all tensor-parallel ranks, so that one sends."""


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

    async def receive(self, rid: str) -> Arrival:
        """Wait for the KV cache of ``rid``; it is then the caller's. Always a checkpoint.

        :raises RequestInUse: somebody waits for it already.
        :raises PeerLost: its sender has gone.
        :raises HandOffFailed: it was refused.
        :raises GrantGone: its sender took too long.
        """
        if rid in self._waiting:
            raise RequestInUse(f"request {rid} is waited for already")
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

    def refuse(self, generation: int, error: ControlError) -> None:
        """Give up a generation whose request cannot be taken; who waits for it is told."""
        self._landings[generation].release(error.message)
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
        if request is not None and request.rid in self._waiting:
            self._waiting[request.rid].fail(error)
        self._forget(generation)

    def _forget(self, generation: int) -> None:
        self._landings.pop(generation, None)
        request = self._requests.pop(generation, None)
        if request is not None and self._latest.get(request.rid) == generation:
            del self._latest[request.rid]


class TilertSession:
    """One connection of a TileRT prefill: the dialogue for a ``Link``.

    :param number: the connection's.
    """

    is_open = True

    def __init__(self, number: int, inbox: TilertInbox, post: Post) -> None:
        self._number = number
        self._inbox = inbox
        self._post = post
        self._reader = FrameReader()
        self._generation: int | None = None
        self._request: TilertRequest | None = None
        self.is_over = False
        self.next_deadline: float | None = None

    def begin(self) -> None:
        """Claim a region on the peer's behalf, and greet it; without one, hang up."""
        try:
            landing = self._inbox.admit(self, self._number)
        except Busy as error:
            logger.warning("connection %d of a TileRT prefill: %s", self._number, error.message)
            self.is_over = True
            return
        granted = landing.granted
        self._generation = granted.generation
        self._inbox.receiver.receive(
            self._number,
            Claim(
                request=granted.request,
                incarnation=granted.incarnation,
                generation=granted.generation,
                rank=SENDER_RANK,
                tokens=self._inbox.max_seq_len,
                nbytes=granted.region.nbytes,
                last_token=0,
            ),
        )
        self._post(encode(self._inbox.hello(granted.region).to_json()))
        self._be_patient()

    def _be_patient(self) -> None:
        self.next_deadline = self._inbox.clock() + self._inbox.patience

    def send(self, message: Message) -> None:
        """Say what the receiver says, as far as this dialect has words for it."""
        if isinstance(message, Abort):
            self._post(encode({"error": message.reason}))

    def receive(self, data: bytes) -> None:
        """Take bytes.

        :raises ControlError: the connection is to be closed.
        """
        for content in self._reader.feed(data):
            self._be_patient()
            if self._request is None:
                self._open(content)
            else:
                self._done(content, self._request)

    def _open(self, content: JSONObject) -> None:
        generation = self._generation
        assert generation is not None  # noqa: S101 - a connection without one is over
        request = TilertRequest.parse(content)
        self._request = request
        self._inbox.announce(self._number, generation, request)
        if request.seq_len > self._inbox.max_seq_len:
            self._inbox.refuse(generation, HandOffFailed("seq_len exceeds max_seq_len"))
        elif request.rank != SENDER_RANK:
            fault = f"rank {request.rank} sends nothing in this layout; rank {SENDER_RANK} does"
            self._inbox.refuse(generation, HandOffFailed(fault))

    def _done(self, content: JSONObject, request: TilertRequest) -> None:
        done = TilertDone.parse(content)
        if (done.rid, done.rank) != (request.rid, request.rank):
            raise OutOfOrder(
                f"done for {done.rid} (rank {done.rank}) on the connection of {request.rid}"
                f" (rank {request.rank})"
            )
        generation = self._generation
        assert generation is not None  # noqa: S101 - as above
        nbytes = self._inbox.reservations.region_bytes
        self._inbox.receiver.receive(self._number, Commit(generation, nbytes))

    def receive_end(self) -> None:
        """The peer has closed the connection.

        :raises ControlError: in the middle of a message.
        """
        self._reader.end()

    def ping(self) -> None:
        """Nothing: this dialect has no heartbeats."""

    def expire(self) -> None:
        """Close a connection that has said nothing for too long.

        :raises PeerLost: always.
        """
        raise PeerLost(f"the TileRT prefill said nothing for {self._inbox.patience:g} s")

    def end(self, error: ControlError | None) -> None:
        """End what the peer was writing."""
        if self._generation is not None and self._request is None and error is None:
            # It has asked for nothing, so that it never wrote: a port scan costs no quarantine.
            self._inbox.receiver.receive(self._number, Abort(self._generation, "it asked nothing"))
        self._inbox.leave(self._number)
