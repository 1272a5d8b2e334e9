"""Decode on another node: what a router's pipeline has in place of an engine.

::

    Reserve   POST /pd/reserve      ─► Reservation, kept alive while prefill works
    ImportKV  POST /pd/decode       ─► the head of the stream, once the KV cache has been imported
    Decode    the stream's lines    ─► the mailbox

What is claimed goes into the request's lease.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from tilert_stream.cluster.decode_stream import DecodeStream
from tilert_stream.cluster.errors import HandOverLost, HandshakeRefused, LayoutMismatch
from tilert_stream.cluster.queue import Queue
from tilert_stream.cluster.reservation import Reservation
from tilert_stream.errors import InvalidRequest
from tilert_stream.events import Finished, KVReady, Reserved
from tilert_stream.fusion import stage_error

if TYPE_CHECKING:
    from tilert_stream.cluster.decode_call import DecodeCall
    from tilert_stream.cluster.janitor import Janitor
    from tilert_stream.cluster.keeper import Keeper
    from tilert_stream.cluster.pool import Pool
    from tilert_stream.cluster.prefill_layouts import KnownLayout
    from tilert_stream.events import GenerateRequest, Prefilled, TokenBatch
    from tilert_stream.http.client import Response
    from tilert_stream.mailbox import Mailbox
    from tilert_stream.scope import RequestScope

    from .remote_prefill import RemotePrefill

__all__ = ("RemoteDecode",)

DRAIN_BYTES: Final = 256 * 1024
"""What is read of a stream whose request has ended, before its connection is closed."""


class RemoteDecode:
    """A ``DecodeNode`` on a pool of decode nodes, ours or TileRT's.

    :param janitor: tells nodes what has ended, and reads late bodies; entered by whoever made it.
    :param keeper: keeps reservations alive; entered like the janitor.
    :param queue: where requests wait while every node is busy; None: nobody waits.
    :param layouts: of prefill's KV caches, where they are known: nodes that cannot take them are
        found before anything is computed.
    :param prefill: is asked while a slot is, where the node's grant can be foretold: a refusal
        takes it back within the time of one call. None: it is asked when the slot is there.
    """

    def __init__(
        self,
        pool: Pool[DecodeCall],
        janitor: Janitor,
        keeper: Keeper,
        *,
        queue: Queue | None = None,
        layouts: KnownLayout | None = None,
        prefill: RemotePrefill | None = None,
    ) -> None:
        self._pool = pool
        self._janitor = janitor
        self._keeper = keeper
        self._queue = queue or Queue(timeout=0)
        self._layouts = layouts
        self._prefill = prefill
        self.where = pool.where

    def start_early(self, request: GenerateRequest, scope: RequestScope) -> None:
        """Ask for a slot and for prefill now, where a node's grant can be foretold. Sync."""
        reservation = Reservation(request, self._pool, self._janitor, self._keeper, self._queue)
        scope.lease.hold("reservation", reservation.release)
        scope.begun = reservation
        if self._layouts is not None:
            reservation.layout = self._layouts.common
        if self._prefill is not None and _fault(request) is None:
            foretold = reservation.foretell()
            if foretold is not None:
                # Prefill first: it takes longer, and the node waits for it in any case.
                reservation.early = self._prefill.begin(request, reservation.node, foretold)
                reservation.begin()

    async def reserve(self, request: GenerateRequest, scope: RequestScope) -> Reserved:
        """Have some node hold a slot.

        :raises ~tilert_stream.errors.Busy: none came free in time, or the line is full.
        :raises ~tilert_stream.errors.InvalidRequest: there is no prompt, or nothing to generate.
        :raises ~tilert_stream.errors.ContextLengthExceeded: the request can never fit.
        :raises LayoutMismatch: no node can take the KV caches that prefill makes.
        :raises ~tilert_stream.http.client.UpstreamError: no node can be used.
        """
        fault = _fault(request)
        if fault is not None:
            raise fault
        if scope.begun is None:
            self.start_early(request, scope)
        reservation = cast("Reservation", scope.begun)
        if self._layouts is not None:
            await self._claim(reservation, self._layouts)
        else:
            await reservation.claim()
        return Reserved(reservation.grant.region, reservation)

    async def _claim(self, reservation: Reservation, layouts: KnownLayout) -> None:
        told = reservation.layout
        try:
            await reservation.claim()
        except LayoutMismatch:
            await layouts.renew()
            reservation.layout = layouts.common
            if reservation.layout == told:
                raise
            await reservation.claim()

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
        except (HandshakeRefused, HandOverLost):
            reservation.avoid()
            raise
        lines = DecodeStream(scope.request.limits, first, label=node.origin.label)
        stream = _RemoteStream(reservation, response, lines, self._janitor)
        scope.lease.hold("decode", stream.release)
        return KVReady(stream)

    async def decode(self, ready: KVReady, scope: RequestScope) -> None:
        """Let the stream flow into the mailbox, up to the request's end.

        The event loop, which reads the socket, passes the tokens on: this returns before, and no
        task stands between the node and the mailbox.
        """
        cast("_RemoteStream", ready.sequence).flow_into(scope.mailbox)


def _fault(request: GenerateRequest) -> InvalidRequest | None:
    """Why nothing can be asked of a node for ``request``."""
    if not request.prompt_ids:
        return InvalidRequest("the prompt has no token; it needs at least one")
    if request.limits.max_tokens < 1:
        return InvalidRequest(
            f"max_tokens is {request.limits.max_tokens}; it must be 1 or more", param="max_tokens"
        )
    return None


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

    def flow_into(self, mailbox: Mailbox[TokenBatch]) -> None:
        """Pass on what is there, and have the event loop do so with what comes. Sync."""
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

        response.on_ready(pass_on)
        more = True
        while more and lines.finished is None:
            more = pass_on()

    def _pass(self, data: bytes, mailbox: Mailbox[TokenBatch]) -> None:
        """Pass on what one read has brought, in one hand-off."""
        items = self._lines.feed(data) if data else self._lines.eof()
        if items:
            mailbox.put(*items)

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
