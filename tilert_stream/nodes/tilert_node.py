"""A decode node's requests in TileRT's dialect: nothing is promised, all joins in ``/pd/decode``.

::

    prefill ─► control connection ─► KV lands ─┐
    POST /pd/decode ─► slot ───────────────────┴─► import ─► tokens

A request without a free slot is refused, as TileRT refuses it. Everything here belongs to the event
loop's thread.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar, cast

from anyio import move_on_after

from tilert_stream.errors import ContextLengthExceeded, KVTimeout
from tilert_stream.events import GenerateRequest, KVReady, Prefilled, Reserved
from tilert_transports.control.errors import RequestInUse

from .engine_side import EngineSide

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tilert_engine.decode_worker import DecodeWorker
    from tilert_engine.layouts.abc import Landed as LandedBytes
    from tilert_stream.cluster.admission import Ticket
    from tilert_stream.scope import RequestScope
    from tilert_transports.control.regions import LandingRegion
    from tilert_transports.control.tilert_pd_decode import Arrival

    from .decode_orders import DecodeOrder

__all__ = ("TilertNode",)

SequenceT = TypeVar("SequenceT")


@dataclass(slots=True)
class _Held:
    """What a request has here."""

    ticket: Ticket
    has_kv: bool = False


class TilertNode(EngineSide[SequenceT]):
    """The ``DecodeNode`` of a decode process whose prefill speaks ``tilert-pd``.

    :param arrived: waits for the KV cache of a request id.
    :param discard: gives up the one of a request id, here or yet to come; whether it was here.
    :param decline: fails the one of a request id, of which nothing is here; whether nothing was.
    :param view: the bytes of a landing region.
    """

    def __init__(
        self,
        worker: DecodeWorker[SequenceT],
        arrived: Callable[[str], Awaitable[Arrival]],
        discard: Callable[[str], bool],
        decline: Callable[[str, str], bool],
        view: Callable[[LandingRegion], LandedBytes],
    ) -> None:
        super().__init__(worker, view)
        self._arrived = arrived
        self._discard = discard
        self.decline = decline
        """Prefill's word, and its reason, that nothing will come for a request."""
        self._held: dict[str, _Held] = {}

    @property
    def requests(self) -> list[str]:
        """The ids that hold a slot."""
        return list(self._held)

    def holds(self, request: str, attempt: int | None = None) -> bool:
        """Whether ``request`` has a slot; the KV cache of one that has none is given up."""
        return request in self._held or self._discard(request)

    def withdraw(self, request: str) -> bool:
        """False: whoever holds a slot is being served, and its stream ends it."""
        return False

    # --- what a request's stages ask ---------------------------------------------------------

    async def reserve(self, request: GenerateRequest, scope: RequestScope) -> Reserved:
        """Take a slot.

        :raises ~tilert_stream.errors.Busy: none is free.
        :raises ~tilert_transports.control.errors.RequestInUse: a live request has this id.
        """
        ticket = await self.admission.acquire()
        if request.id in self._held:
            ticket.free()
            raise RequestInUse(f"request {request.id} is being decoded already")
        held = self._held[request.id] = _Held(ticket)
        scope.lease.hold("slot", lambda _reason: self._give_back(request.id, held))
        return Reserved(ticket.slot, held)

    def _give_back(self, request: str, held: _Held) -> None:
        del self._held[request]
        held.ticket.free()
        if not held.has_kv:
            self._discard(request)

    async def import_kv(self, prefilled: Prefilled, scope: RequestScope) -> KVReady:
        """Await the KV cache, and have the engine import it.

        ``max_tokens`` is cut to what the window leaves: these routers do not know the prompt's
        length.

        :raises ~tilert_transports.control.errors.ControlError: prefill gave it up, or has gone.
        :raises ~tilert_stream.errors.KVTimeout: it did not come in the order's own time.
        :raises ~tilert_stream.errors.ContextLengthExceeded: the prompt leaves no room.
        """
        order = cast("DecodeOrder", scope.request)
        held = cast("_Held", prefilled.reserved.grant)
        landing = (await self._arrival(order)).landing
        held.has_kv = True
        region = scope.lease.hold("region", landing.release)
        landed = landing.take()
        room = self.window - landed.tokens
        if room <= 1:
            raise ContextLengthExceeded(
                f"the prompt's {landed.tokens} tokens leave no room in this decode node's window of"
                f" {self.window} (--max-seq-len): shorten the prompt"
            )
        limits = replace(order.limits, max_tokens=min(order.limits.max_tokens, room))
        ready = await self.open(replace(order, limits=limits), held.ticket, landed, scope)
        region.release("imported")
        return ready

    async def _arrival(self, order: DecodeOrder) -> Arrival:
        with move_on_after(order.kv_timeout):
            return await self._arrived(order.id)
        raise KVTimeout(
            f"the KV cache did not land within {order.kv_timeout:g} s (timeout_s); try again"
        )
