"""A decode node's requests: promised to a router, filled by prefill, decoded here.

::

    POST /pd/reserve ─► slot + landing region ─┐
    prefill ─► control connection ─► KV lands ─┤
    POST /pd/decode ───────────────────────────┴─► import ─► tokens

A promise that nobody comes for runs out with its lease; one that is claimed belongs to its
request's own lease. Everything here belongs to the event loop's thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar, cast

from anyio import move_on_after

from tilert_stream.errors import KVTimeout
from tilert_stream.events import GenerateRequest, KVReady, Prefilled, Reserved
from tilert_transports.control.errors import GrantGone, PeerLost, RequestInUse

from .engine_side import EngineSide
from .recent import Recent

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from tilert_engine.decode_worker import DecodeWorker
    from tilert_engine.layouts.abc import Landed as LandedBytes
    from tilert_stream.cluster.admission import Ticket
    from tilert_stream.errors import TilertStreamError
    from tilert_stream.scope import RequestScope
    from tilert_transports.control.landing import Landing
    from tilert_transports.control.prompt import PromptIdentity
    from tilert_transports.control.regions import LandingRegion
    from tilert_transports.control.reservation import Granted, Landed

    from .decode_orders import DecodeOrder

__all__ = ("DecodeNode",)

SequenceT = TypeVar("SequenceT")

REMEMBERED: Final = 1024
"""Ends that a router may still ask for."""


@dataclass(slots=True)
class _Promise:
    """A slot, and a landing region for it."""

    request: str
    attempt: int | None
    """The router's own name of the call that made it."""
    ticket: Ticket
    landing: Landing
    claimed: bool = False

    @property
    def generation(self) -> int:
        return self.landing.granted.generation


class DecodeNode(EngineSide[SequenceT]):
    """The ``DecodeNode`` of a decode process: its KV caches come from elsewhere.

    :param reserve: holds a landing region for a request of so many tokens.
    :param view: the bytes of a landing region.
    :param refuse: turns away whoever comes for a grant that a router has named and did not get.
    """

    def __init__(
        self,
        worker: DecodeWorker[SequenceT],
        reserve: Callable[[str, int, PromptIdentity | None, int | None], Landing],
        view: Callable[[LandingRegion], LandedBytes],
        refuse: Callable[[int], object],
    ) -> None:
        super().__init__(worker, view)
        self._reserve = reserve
        self.refuse = refuse
        self._promises: dict[int, _Promise] = {}
        self._failed: Recent[tuple[str, int], TilertStreamError] = Recent(REMEMBERED)
        """Why promises ended before their request came; by request and generation."""
        self._forestalled: Recent[tuple[str, int], bool] = Recent(REMEMBERED)
        """Attempts that were given up before they came; by request."""

    # --- what routers ask --------------------------------------------------------------------

    async def promise(
        self,
        request: str,
        max_tokens: int,
        *,
        needs: Collection[str] = (),
        wait: float = 0,
        prompt: PromptIdentity | None = None,
        attempt: int | None = None,
        generation: int | None = None,
    ) -> Granted:
        """Hold a slot and a landing region for ``request``.

        :param max_tokens: prompt and answer together.
        :param needs: of what not every engine is capable, and the request asks for.
        :param wait: seconds that it may stand in line for a slot, behind other routers' requests.
        :param prompt: the only one whose KV cache may land; None: any.
        :param attempt: the router's name of this call, by which it can be given up.
        :param generation: what the router would have the grant called.
        :raises ~tilert_stream.errors.UnsupportedParameter: the engine lacks one of ``needs``.
        :raises ~tilert_stream.errors.Busy: no slot or no region is free.
        :raises ~tilert_stream.errors.ContextLengthExceeded: they can never fit.
        :raises ~tilert_transports.control.errors.RequestInUse: a live request has this id.
        :raises ~tilert_transports.control.errors.GrantGone: it was given up before it came.
        """
        self.check_needs(needs)
        self.check_length(max_tokens)
        self._check_unknown(request)
        ticket = await self.admission.acquire(wait)
        try:
            self._check_unknown(request)
            self._check_wanted(request, attempt)
            landing = self._reserve(request, max_tokens, prompt, generation)
        except BaseException:
            ticket.free()
            raise
        promise = _Promise(request, attempt, ticket, landing)
        self._promises[promise.generation] = promise
        landing.on_failed = lambda: self._fail(promise)
        if landing.failure is not None:  # by a claim that had come before
            self._fail(promise)
        return landing.granted

    def _check_unknown(self, request: str) -> None:
        # Its landing region is free again while it decodes: the regions know it no more.
        if request in self.requests:
            raise RequestInUse(f"request {request} already holds a slot here")

    def _check_wanted(self, request: str, attempt: int | None) -> None:
        # Each on a connection of its own, a cancel can overtake the call that it is meant for.
        if attempt is not None and self._forestalled.pop((request, attempt)):
            raise GrantGone(f"request {request} was given up before its reservation came")

    def holds(self, request: str, attempt: int | None = None) -> bool:
        """Whether ``request`` has a slot; of ``attempt``, if one is named.

        An attempt that is named and not there will find that it has been given up.
        """
        promise = self._of(request)
        if promise is not None and attempt in (None, promise.attempt):
            return True
        if attempt is not None:
            self._forestalled.put((request, attempt), value=True)
        return False

    def _of(self, request: str) -> _Promise | None:
        return next((p for p in self._promises.values() if p.request == request), None)

    def renew(self, request: str, generation: int) -> float:
        """Give a promise its full time again: so many seconds.

        :raises ~tilert_transports.control.errors.GrantGone: it is over.
        """
        landing = self._promised(request, generation).landing
        landing.renew()
        return landing.granted.ttl

    def withdraw(self, request: str) -> bool:
        """Give back the promise of ``request`` that nobody has claimed; False if there is none."""
        promise = self._of(request)
        if promise is None or promise.claimed:
            return False
        self._give_back(promise, "cancelled")
        return True

    def decline(self, request: str, incarnation: str, generation: int, reason: str) -> bool:
        """Fail the promise that a prefill node cannot bring anything for.

        False: nobody waits for one of that name, or its KV cache has landed already.
        """
        promise = self._promises.get(generation)
        if promise is None or promise.request != request:
            return False
        landing = promise.landing
        if landing.granted.incarnation != incarnation:
            return False
        return landing.turn_away(
            PeerLost(f"prefill does not reach the control port of this decode node: {reason}")
        )

    def _promised(self, request: str, generation: int | None) -> _Promise:
        promise = self._of(request)
        if promise is None or generation not in (None, promise.generation):
            grant = "the grant" if generation is None else f"grant {generation}"
            raise GrantGone(
                f"{grant} of request {request} has expired or was released; reserve again"
            )
        return promise

    def _fail(self, promise: _Promise) -> None:
        # A claimed one fails its request, whose lease gives it back.
        if not promise.claimed:
            failure = promise.landing.failure
            if failure is not None:
                self._failed.put((promise.request, promise.generation), failure)
            self._give_back(promise, "failed")

    def _give_back(self, promise: _Promise, reason: str) -> None:
        if self._promises.pop(promise.generation, None) is not None:
            promise.landing.release(reason)
            promise.ticket.free()

    # --- what a request's stages ask ---------------------------------------------------------

    async def reserve(self, request: GenerateRequest, scope: RequestScope) -> Reserved:
        """Claim the promise that the router was given.

        :raises ~tilert_transports.control.errors.GrantGone: it is over.
        :raises ~tilert_transports.control.errors.ControlError: why it ended, if prefill ended it.
        :raises ~tilert_transports.control.errors.RequestInUse: it is claimed already.
        """
        order = cast("DecodeOrder", request)
        failure = self._failed.pop((order.id, order.generation or 0))
        if failure is not None:
            raise failure
        promise = self._promised(order.id, order.generation)
        if promise.claimed:
            raise RequestInUse(f"request {order.id} is being decoded already")
        promise.landing.claim()
        promise.claimed = True
        scope.lease.hold("slot", lambda reason: self._give_back(promise, reason))
        return Reserved(promise.ticket.slot, promise)

    async def import_kv(self, prefilled: Prefilled, scope: RequestScope) -> KVReady:
        """Await that the KV cache has landed, and have the engine import it.

        :raises ~tilert_transports.control.errors.ControlError: prefill gave it up, or has gone.
        :raises ~tilert_stream.errors.KVTimeout: it did not come in the order's own time.
        :raises ~tilert_stream.errors.ContextLengthExceeded: the prompt is longer than promised.
        """
        order = cast("DecodeOrder", scope.request)
        promise = cast("_Promise", prefilled.reserved.grant)
        landed = await self._landed(promise.landing, order)
        self.check_length(landed.tokens + order.limits.max_tokens)
        ready = await self.open(order, promise.ticket, landed, scope)
        promise.landing.release("imported")
        return ready

    async def _landed(self, landing: Landing, order: DecodeOrder) -> Landed:
        with move_on_after(order.kv_timeout):
            await landing.wait()
            return landing.take()
        raise KVTimeout(
            f"the KV cache did not land within {order.kv_timeout:g} s (timeout_s); try again"
        )

    @property
    def requests(self) -> list[str]:
        """The ids that hold a slot, promised or decoding."""
        return [promise.request for promise in self._promises.values()]
