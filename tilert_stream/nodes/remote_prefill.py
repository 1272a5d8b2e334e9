"""Prefill on another node: a reservation in, the first token out; its KV cache goes to the node.

::

    Prefill   POST /v1/completions  ─► the first token

A decode node that dies while prefill works takes nothing with it but prefill's work: another is
asked, since nothing has left for the client; so it is where prefill and a decode node do not fit
together, or the one does not reach the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from anyio import CancelScope

from tilert_stream.cluster.errors import HandOverLost, HandshakeRefused
from tilert_stream.errors import Cancelled
from tilert_stream.events import Prefilled, Reserved
from tilert_stream.http.client import UpstreamError

from .hand_over.destination import Destination, params_for
from .hand_over.destination import Grant as Claim

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tilert_stream.cluster.decode_call import DecodeCall
    from tilert_stream.cluster.grant import Grant
    from tilert_stream.cluster.pool import Member, Pool, Visit
    from tilert_stream.cluster.prefill_answer import PrefillAnswer
    from tilert_stream.cluster.prefill_call import PrefillCall
    from tilert_stream.cluster.prefill_layouts import PrefillLayouts
    from tilert_stream.cluster.reservation import Reservation
    from tilert_stream.errors import TilertStreamError
    from tilert_stream.events import GenerateRequest
    from tilert_stream.http.client import Begun
    from tilert_stream.scope import RequestScope

__all__ = ("EarlyPrefill", "RemotePrefill")

RECLAIMS: Final = 3
"""How often a request may lose its slot to a dying node before it fails."""


class RemotePrefill:
    """A ``PrefillNode`` on a pool of servers with OpenAI's API, such as vLLM with our connector.

    Follows ``RemoteDecode``'s reservation in the pipeline.

    :param layouts: what is known of the KV caches that they make; learns from what happens.
    """

    def __init__(self, pool: Pool[PrefillCall], layouts: PrefillLayouts | None = None) -> None:
        self._pool = pool
        self._layouts = layouts
        self.where = pool.where

    def begin(
        self, request: GenerateRequest, node: DecodeCall, grant: Grant
    ) -> EarlyPrefill | None:
        """Ask the first node now, for a slot that is being asked for; None: not now. Sync.

        It counts as one of the node's requests from now on.
        """
        member = self._pool.next()
        begun = member.node.begin(request, _kv_transfer_params(request, node, grant))
        if begun is None:
            return None
        self._pool.take_turn()
        return EarlyPrefill(member, begun)

    async def prefill(self, reserved: Reserved, scope: RequestScope) -> Prefilled:
        """Have the prompt computed, and the reservation kept alive; one that fails ends the other.

        :raises ~tilert_stream.errors.InvalidRequest: prefill's own 4xx, in its own words.
        :raises ~tilert_stream.errors.Busy: all prefill or all decode nodes are busy.
        :raises ~tilert_stream.http.client.UpstreamError: none of either can be used.
        """
        reservation = cast("Reservation", reserved.grant)
        answer = await self._compute(reservation, scope)
        for _ in range(RECLAIMS):
            if not isinstance(answer, UpstreamError):
                break
            node = reservation.node
            refused = isinstance(answer, HandshakeRefused | HandOverLost)
            if refused:
                self._doubt(answer)
                reservation.avoid()
            await reservation.claim()
            if refused and reservation.node is node:
                break  # there is no other
            answer = await self._compute(reservation, scope)
        if isinstance(answer, UpstreamError):
            raise answer
        reserved = Reserved(reservation.grant.region, reservation)
        return Prefilled(reserved, answer.first, answer.kv_transfer_params, answer.usage)

    async def _compute(
        self, reservation: Reservation, scope: RequestScope
    ) -> PrefillAnswer | UpstreamError:
        """Prefill's answer, or why the reservation was lost meanwhile, or is of no use."""
        early, reservation.early = cast("EarlyPrefill | None", reservation.early), None
        try:
            return await self._ask_some(reservation, scope, early)
        finally:
            if early is not None:
                early.close()

    async def _ask_some(
        self, reservation: Reservation, scope: RequestScope, early: EarlyPrefill | None
    ) -> PrefillAnswer | UpstreamError:
        params = _kv_transfer_params(scope.request, reservation.node, reservation.grant)
        answer: PrefillAnswer | None = None
        lost: list[TilertStreamError] = []
        asking = True
        cancel = CancelScope()

        def stop(_reason: str) -> None:
            if asking:
                cancel.cancel()

        def give_up(error: TilertStreamError) -> None:
            lost.append(error)
            stop("reservation lost")

        async def ask(member: Member[PrefillCall]) -> PrefillAnswer:
            return await self._ask(member, scope.request, params, early)

        hold = scope.lease.hold("prefill", stop)
        stop_keeping = reservation.keep(give_up)
        try:
            with cancel:
                answer = await self._pool.first(ask, order=self._order(early))
        except (HandshakeRefused, HandOverLost) as error:
            return error
        finally:
            asking = False
            stop_keeping()
            hold.release("prefilled")
        if answer is not None:
            return answer
        for loss in lost:
            if isinstance(loss, UpstreamError):
                return loss
            raise loss
        raise Cancelled(f"request {scope.request.id} ended before prefill had answered")

    def _order(self, early: EarlyPrefill | None) -> list[Member[PrefillCall]]:
        return self._pool.order(first=None if early is None else early.member)

    async def _ask(
        self,
        member: Member[PrefillCall],
        request: GenerateRequest,
        params: Mapping[str, object] | None,
        early: EarlyPrefill | None,
    ) -> PrefillAnswer:
        taken = early.take(member) if early is not None else None
        visit, begun = taken or (member.visit(), None)
        try:
            answer = await member.node.prefill(request, params, begun)
        finally:
            visit.leave()
        self._meet(member)
        return answer

    def _meet(self, member: Member[PrefillCall]) -> None:
        if self._layouts is not None:
            self._layouts.meet(member)

    def _doubt(self, error: UpstreamError) -> None:
        if self._layouts is not None and isinstance(error, HandshakeRefused):
            self._layouts.doubt()


class EarlyPrefill:
    """A prefill that one node has been asked for, and counts as one of its requests."""

    __slots__ = ("_held", "member")

    def __init__(self, member: Member[PrefillCall], begun: Begun) -> None:
        self.member = member
        self._held: tuple[Visit, Begun] | None = (member.visit(), begun)

    def take(self, member: Member[PrefillCall]) -> tuple[Visit, Begun] | None:
        """The visit of ``member``, which is the taker's to leave then, and what it has been asked.

        Once; None: nothing.
        """
        if member is not self.member:
            return None
        held, self._held = self._held, None
        return held

    def close(self) -> None:
        """Give it up, if nobody has taken it. Sync, idempotent."""
        if self._held is not None:
            (visit, begun), self._held = self._held, None
            visit.leave()
            begun.close()


def _kv_transfer_params(
    request: GenerateRequest, node: DecodeCall, grant: Grant
) -> dict[str, object] | None:
    if request.limits.max_tokens == 1:
        # The first token is the last one: no KV cache is wanted.
        return None
    address = node.address
    claim = None
    if grant.incarnation is not None:
        claim = Claim(grant.request, grant.incarnation, grant.generation)
    return params_for(Destination(address.host, address.ctrl_port, claim, address.http_port))
