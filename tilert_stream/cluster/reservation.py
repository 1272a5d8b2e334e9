"""A slot on some decode node, for one request: claimed, kept alive, given back.

::

    claim ─► a node's grant ─► keep (while prefill works) ─► the stream's end, or cancel
       ▲                         │
       └── the node has died ────┘   nothing has left for the client yet: another is asked

It counts from before the first node is asked: whatever is cancelled, a node that may have granted
is told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..errors import Busy, InvalidRequest, NotReady
from ..http.client.errors import ConnectFailed, UpstreamError
from .errors import LayoutMismatch, ReservationLost

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..errors import TilertStreamError
    from ..events import GenerateRequest
    from .decode_call import DecodeCall, Grant
    from .janitor import Janitor
    from .keeper import Keeper
    from .pool import Member, Pool, Visit

__all__ = ("Reservation",)

_SKIP: Final = (Busy, NotReady, UpstreamError)
_NOT_GRANTED: Final = (Busy, NotReady, InvalidRequest, ConnectFailed, LayoutMismatch)


class Reservation:
    """One request's slot.

    :param layout: of prefill's KV caches, where it is known.
    """

    def __init__(
        self,
        request: GenerateRequest,
        pool: Pool[DecodeCall],
        janitor: Janitor,
        keeper: Keeper,
        layout: Mapping[str, object] | None = None,
    ) -> None:
        self.request = request
        self._pool = pool
        self._janitor = janitor
        self._keeper = keeper
        self._layout = layout
        self._member: Member[DecodeCall] | None = None
        self._visit: Visit | None = None
        self._grant: Grant | None = None
        self._released = False
        self.settled = False
        """The node has ended the request by itself, or somebody else sees to that."""

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
        if self._member is None:
            raise RuntimeError("the slot has not been claimed")
        return self._member.node

    @property
    def name(self) -> str:
        """The node's name in its pool."""
        return self._member.name if self._member is not None else ""

    async def claim(self) -> None:
        """Have some node hold a slot.

        :raises ~tilert_stream.errors.Busy: all are busy.
        :raises ~tilert_stream.errors.ContextLengthExceeded: the request never fits.
        :raises ~tilert_stream.http.client.UpstreamError: none can be used.
        """
        self._grant = await self._pool.first(self._ask, skip=_SKIP)

    async def _ask(self, member: Member[DecodeCall]) -> Grant:
        if member is self._member and not self.settled:
            # A cancel names the request only: one that came later would end the new reservation.
            await member.node.cancel(self.request.id)
            self.settled = True
        self._move_to(member)
        try:
            return await member.node.reserve(self.request, self._layout)
        except _NOT_GRANTED:
            self.settled = True
            raise

    def _move_to(self, member: Member[DecodeCall]) -> None:
        self._leave()
        self._grant = None
        self.settled = False
        self._member = member
        self._visit = member.visit()

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
                self.settled = True
            lost(error)

        return self._keeper.keep(self.node, grant, tell).stop

    def release(self, _reason: str) -> None:
        """Give it back. Sync, idempotent: the janitor tells the node."""
        if not self._released:
            self._released = True
            self._leave()

    def _leave(self) -> None:
        if self._visit is not None:
            visit, self._visit = self._visit, None
            visit.leave()
            if not self.settled:
                self.cancel()

    def cancel(self) -> None:
        """Tell the node that the request has ended. Sync."""
        node, request = self.node, self.request.id
        self._janitor.submit(f"cancel of {request} at {self.name}", lambda: node.cancel(request))


def _nothing() -> None:
    """A stock node has promised nothing that could be kept."""
