"""A slot on some decode node, for one request: claimed, kept alive, given back.

::

    claim ─► a node's grant ─► keep (while prefill works) ─► the stream's end, or cancel
     ▲ │ ▲                       │
     │ │ └── the node has died ──┘   nothing has left for the client yet: another is asked
     └─┘ all are busy: in line, for as long as the queue allows

Where the first node's grant can be foretold, prefill is asked at the same time: ``foretell`` and
``begin`` come before ``claim`` then.

It counts from before the first node is asked: whatever is cancelled, a node that may have granted
is told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from ..errors import Busy, Cancelled, NotReady
from ..http.client.errors import UpstreamError
from .claim import Claim
from .contest import Contest
from .errors import ReservationLost

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..errors import TilertStreamError
    from ..events import GenerateRequest
    from .decode_call import DecodeCall
    from .grant import Grant
    from .janitor import Janitor
    from .keeper import Keeper
    from .pool import Member, Pool
    from .queue import Queue

__all__ = ("Early", "Reservation")

_SKIP: Final = (Busy, NotReady, UpstreamError)


class Early(Protocol):
    """A prefill that has begun before its decode slot was certain."""

    def close(self) -> None:
        """Give it up. Sync, idempotent."""
        ...


class Reservation:
    """One request's slot.

    :param queue: where it waits while every node is busy.
    """

    def __init__(
        self,
        request: GenerateRequest,
        pool: Pool[DecodeCall],
        janitor: Janitor,
        keeper: Keeper,
        queue: Queue,
    ) -> None:
        self.request = request
        self._pool = pool
        self._janitor = janitor
        self._keeper = keeper
        self._queue = queue
        self.layout: Mapping[str, object] | None = None
        """Of prefill's KV caches, where it is known."""
        self.early: Early | None = None
        """Prefill, asked in the meantime; only while the grant is the foretold one."""
        self._order: list[Member[DecodeCall]] | None = None
        self._claim: Claim | None = None
        self._grant: Grant | None = None
        self._released = False

    @property
    def grant(self) -> Grant:
        """What the node has given.

        :raises RuntimeError: nothing yet.
        """
        if self._grant is None:
            raise RuntimeError("the slot has not been claimed")
        return self._grant

    @property
    def node(self) -> DecodeCall:
        """The node that has given it.

        :raises RuntimeError: none yet.
        """
        return self._claimed.member.node

    @property
    def _claimed(self) -> Claim:
        if self._claim is None:
            raise RuntimeError("the slot has not been claimed")
        return self._claim

    @property
    def name(self) -> str:
        """The node's name in its pool."""
        return self._claim.member.name if self._claim is not None else ""

    def settle(self) -> None:
        """The node has ended the request by itself, or somebody else sees to that."""
        self._claimed.settled = True

    def avoid(self) -> None:
        """Ask the node last for a while: it and prefill do not fit together."""
        self._pool.avoid(self._claimed.member)

    def foretell(self) -> Grant | None:
        """The grant of the first node to be asked, as far as it can be told. Sync."""
        if self._queue.waiting:
            return None
        self._order = self._pool.order()
        claim = self._claim_on(self._order[0])
        foretold = claim.foretell()
        if foretold is not None:
            self._take(claim)
            claim.enter()
        return foretold

    def begin(self) -> None:
        """Ask for the foretold grant, if that can be done now; ``claim`` has the answer. Sync."""
        self._claimed.begin(self.layout)

    async def claim(self) -> None:
        """Have some node hold a slot; where all are busy, wait in line for one.

        :raises ~tilert_stream.errors.Busy: none came free in time, or the line is full.
        :raises ~tilert_stream.errors.Cancelled: it has been released.
        :raises ~tilert_stream.errors.ContextLengthExceeded: the request never fits.
        :raises ~tilert_stream.http.client.UpstreamError: none can be used.
        """
        if self._released:
            # Its task takes a first step all the same: what it claimed, nobody would give back.
            raise Cancelled(f"request {self.request.id} ended before its slot was claimed")
        order, self._order = self._order, None
        if not self._queue.waiting or self.early is not None:  # else nobody passes the line
            try:
                self._grant = await self._pool.first(self._ask, skip=_SKIP, order=order)
            except Busy:
                if self._queue.timeout <= 0:
                    raise
            else:
                self._check_early(self._grant)
                return
        self._drop_early()
        if self._claim is not None:
            self._claim.step_back()
        await self._queue.wait(self._contend)

    def _check_early(self, grant: Grant) -> None:
        foretold = self._claimed.foretold
        if foretold is None or (grant.incarnation, grant.generation) != (
            foretold.incarnation,
            foretold.generation,
        ):
            self._drop_early()

    def _drop_early(self) -> None:
        early, self.early = self.early, None
        if early is not None:
            early.close()

    async def _ask(self, member: Member[DecodeCall]) -> Grant:
        claim = self._claim_on(member)
        self._take(claim)
        claim.enter()
        return await claim.ask(self.layout)

    async def _contend(self) -> None:
        contest = Contest(self._pool, self._claim_on, self.layout, wait=self._queue.timeout)
        claim, self._grant = await contest.run()
        self._take(claim)
        if self._released:  # while the grant was on its way
            claim.leave()

    def _claim_on(self, member: Member[DecodeCall]) -> Claim:
        if self._claim is not None and self._claim.member is member:
            return self._claim
        return Claim(self.request, member, self._janitor)

    def _take(self, claim: Claim) -> None:
        if claim is not self._claim:
            self._leave()
            self._claim = claim

    def keep(self, lost: Callable[[TilertStreamError], object]) -> Callable[[], None]:
        """Keep the grant alive until the returned function is called. Sync.

        :param lost: called with the reason when it is lost: ``ReservationLost``, or why the node
            has not renewed it in all its time.
        """
        grant = self.grant
        if not grant.promised:
            return _nothing

        def tell(error: TilertStreamError) -> None:
            if isinstance(error, ReservationLost):
                self.settle()
            lost(error)

        return self._keeper.keep(self.node, grant, tell).stop

    def release(self, _reason: str) -> None:
        """Give it back. Sync, idempotent: the janitor tells the node."""
        if not self._released:
            self._released = True
            self._drop_early()
            self._leave()

    def _leave(self) -> None:
        if self._claim is not None:
            self._claim.leave()

    def cancel(self) -> None:
        """Tell the node that the request has ended. Sync."""
        self._claimed.cancel()


def _nothing() -> None:
    """A stock node has promised nothing that could be kept."""
