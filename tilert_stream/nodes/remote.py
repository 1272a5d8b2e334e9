"""Prefill and decode in other processes: what a router's pipeline has in place of engines.

::

    Reserve   POST /pd/reserve      ─► Reservation, kept alive while prefill works
    Prefill   POST /v1/completions  ─► the first token; its KV cache goes to the node
    ImportKV  POST /pd/decode       ─► the head of the stream, once the KV cache has been imported
    Decode    the stream's lines    ─► the mailbox

What is claimed goes into the request's lease. A decode node that dies while prefill works takes
nothing with it but prefill's work: another is asked, since nothing has left for the client; so it
is where prefill and a decode node do not fit together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from anyio import CancelScope
from anyio.lowlevel import cancel_shielded_checkpoint

from tilert_stream.cluster.decode_stream import DecodeStream
from tilert_stream.cluster.errors import HandshakeRefused
from tilert_stream.cluster.queue import Queue
from tilert_stream.cluster.reservation import Reservation
from tilert_stream.errors import Cancelled, InvalidRequest
from tilert_stream.events import Finished, KVReady, Prefilled, Reserved
from tilert_stream.fusion import stage_error
from tilert_stream.http.client import UpstreamError

from .hand_over.destination import Destination, Grant, params_for

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tilert_stream.cluster.decode_call import DecodeCall
    from tilert_stream.cluster.janitor import Janitor
    from tilert_stream.cluster.keeper import Keeper
    from tilert_stream.cluster.pool import Member, Pool
    from tilert_stream.cluster.prefill_call import PrefillAnswer, PrefillCall
    from tilert_stream.errors import TilertStreamError
    from tilert_stream.events import GenerateRequest, TokenBatch
    from tilert_stream.http.client import Response
    from tilert_stream.mailbox import Mailbox
    from tilert_stream.scope import RequestScope

__all__ = ("RemoteDecode", "RemotePrefill")

RECLAIMS: Final = 3
"""How often a request may lose its slot to a dying node before it fails."""
DRAIN_BYTES: Final = 256 * 1024
"""What is read of a stream whose request has ended, before its connection is closed."""


class RemotePrefill:
    """A ``PrefillNode`` on a pool of servers with OpenAI's API, such as vLLM with our connector.

    Follows ``RemoteDecode``'s reservation in the pipeline.
    """

    def __init__(self, pool: Pool[PrefillCall]) -> None:
        self._pool = pool
        self.where = _where(pool)

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
            refused = isinstance(answer, HandshakeRefused)
            if refused:
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
        # The first token is the last one: no KV cache is wanted.
        one = scope.request.limits.max_tokens == 1
        params = None if one else _kv_transfer_params(reservation)
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
            visit = member.visit()
            try:
                return await member.node.prefill(scope.request, params)
            finally:
                visit.leave()

        hold = scope.lease.hold("prefill", stop)
        stop_keeping = reservation.keep(give_up)
        try:
            with cancel:
                answer = await self._pool.first(ask)
        except HandshakeRefused as error:
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


class RemoteDecode:
    """A ``DecodeNode`` on a pool of decode nodes, ours or TileRT's.

    :param janitor: tells nodes what has ended, and reads late bodies; entered by whoever made it.
    :param keeper: keeps reservations alive; entered like the janitor.
    :param queue: where requests wait while every node is busy; None: nobody waits.
    :param layout: of prefill's KV caches, field by field, where it is known: nodes that cannot
        take them are found before anything is computed.
    """

    def __init__(
        self,
        pool: Pool[DecodeCall],
        janitor: Janitor,
        keeper: Keeper,
        *,
        queue: Queue | None = None,
        layout: Mapping[str, object] | None = None,
    ) -> None:
        self._pool = pool
        self._janitor = janitor
        self._keeper = keeper
        self._queue = queue or Queue(timeout=0)
        self._layout = layout
        self.where = _where(pool)

    async def reserve(self, request: GenerateRequest, scope: RequestScope) -> Reserved:
        """Have some node hold a slot.

        :raises ~tilert_stream.errors.Busy: none came free in time, or the line is full.
        :raises ~tilert_stream.errors.InvalidRequest: there is no prompt, or nothing to generate.
        :raises ~tilert_stream.errors.ContextLengthExceeded: the request can never fit.
        :raises ~tilert_stream.http.client.UpstreamError: no node can be used.
        """
        if not request.prompt_ids:
            raise InvalidRequest("the prompt has no token; it needs at least one")
        if request.limits.max_tokens < 1:
            raise InvalidRequest(
                f"max_tokens is {request.limits.max_tokens}; it must be 1 or more",
                param="max_tokens",
            )
        reservation = Reservation(
            request, self._pool, self._janitor, self._keeper, self._queue, self._layout
        )
        scope.lease.hold("reservation", reservation.release)
        await reservation.claim()
        return Reserved(reservation.grant.region, reservation)

    async def import_kv(self, prefilled: Prefilled, scope: RequestScope) -> KVReady:
        """Begin the stream; its head comes when the KV cache has been imported.

        :raises ~tilert_stream.errors.KVTimeout: the KV cache did not come.
        :raises ~tilert_stream.http.client.UpstreamError: the node, or prefill, has failed.
        """
        reservation = cast("Reservation", prefilled.reserved.grant)
        node = reservation.node
        first = prefilled.first.ids[0]
        try:
            response = await node.decode(scope.request, reservation.grant, first)
        except HandshakeRefused:
            reservation.avoid()
            raise
        lines = DecodeStream(scope.request.limits, first, label=node.origin.label)
        stream = _RemoteStream(reservation, response, lines, self._janitor)
        scope.lease.hold("decode", stream.release)
        return KVReady(stream)

    async def decode(self, ready: KVReady, scope: RequestScope) -> None:
        """Let the stream flow into the mailbox, up to the request's end.

        Where the event loop itself reads sockets, it also passes the tokens on: this returns then,
        and no task stands between the node and the mailbox.
        """
        stream = cast("_RemoteStream", ready.sequence)
        if not stream.flow_into(scope.mailbox):
            await stream.run(scope.mailbox)


class _RemoteStream:
    """A decode node's answer to one request."""

    def __init__(
        self, reservation: Reservation, response: Response, lines: DecodeStream, janitor: Janitor
    ) -> None:
        self._reservation = reservation
        self._response = response
        self._lines = lines
        self._janitor = janitor
        self._ours = True

    def flow_into(self, mailbox: Mailbox[TokenBatch]) -> bool:
        """Pass on what is there, and have the event loop do so with what comes. Sync.

        False: this event loop does not.
        """
        response, lines = self._response, self._lines

        def pass_on() -> bool:
            try:
                data = response.receive_ready()
                if data is None:
                    return False
                self._pass(data, mailbox)
                if response.complete and lines.finished is None:
                    self._pass(b"", mailbox)
                if lines.finished is not None:
                    # Whoever has written the last tokens may have released this.
                    self._part()
            except Exception as error:  # noqa: BLE001 - the loop would only log it; it ends its request
                mailbox.put(Finished.failed(stage_error("decode", error)))
                return False
            return True

        if not response.on_ready(pass_on):
            return False
        more = True
        while more and lines.finished is None:
            more = pass_on()
        return True

    async def run(self, mailbox: Mailbox[TokenBatch]) -> None:
        """Pass on what comes until the request has ended."""
        while self._lines.finished is None:
            if not self._pass(await self._response.receive(), mailbox):
                return
        try:
            # Whoever writes the last tokens and the end goes first.
            await cancel_shielded_checkpoint()
        finally:
            self._part()

    def _pass(self, data: bytes, mailbox: Mailbox[TokenBatch]) -> bool:
        """Pass on what one read has brought, in one hand-off; whether anybody takes it."""
        items = self._lines.feed(data) if data else self._lines.eof()
        return not items or mailbox.put(*items)

    def release(self, _reason: str) -> None:
        """Close the stream, if it is still the request's. Sync."""
        if self._lines.finished is not None:
            self._part()
        elif self._ours:
            self._ours = False
            self._response.close()

    def _part(self) -> None:
        """Give the connection back; what is still to come goes to the janitor. Idempotent."""
        if not self._ours:
            return
        self._ours = False
        reservation, finished = self._reservation, self._lines.finished
        if self._response.complete or (finished is not None and finished.error is not None):
            self._response.close()
            if self._lines.node_ended:
                reservation.settle()
            return
        reservation.settle()
        self._response.on_ready(None)
        name = f"end of {reservation.request.id} at {reservation.name}"
        self._janitor.submit(name, self._drain, self._finish)

    async def _drain(self) -> None:
        drained = 0
        while drained < DRAIN_BYTES and (data := await self._response.receive()):
            self._lines.feed(data)
            drained += len(data)
        self._finish()

    def _finish(self) -> None:
        self._response.close()
        if not self._lines.node_ended:
            self._reservation.cancel()


def _kv_transfer_params(reservation: Reservation) -> dict[str, object]:
    address, grant = reservation.node.address, reservation.grant
    claim = None
    if grant.incarnation is not None:
        claim = Grant(grant.request, grant.incarnation, grant.generation)
    return params_for(Destination(address.host, address.ctrl_port, claim))


def _where(pool: Pool[PrefillCall] | Pool[DecodeCall]) -> str:
    """How a pipeline prints it."""
    return f"{pool.kind} {', '.join(member.name for member in pool.members)}"
