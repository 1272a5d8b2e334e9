"""A decode node's requests: promised to a router, filled by prefill, decoded here.

::

    POST /pd/reserve ─► slot + landing region ─┐
    prefill ─► control connection ─► KV lands ─┤
    POST /pd/decode ───────────────────────────┴─► import ─► tokens

A promise that nobody comes for runs out with its lease; one that is claimed belongs to its
request's own lease. Everything here belongs to the event loop's thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from anyio import move_on_after

from tilert_engine.layouts.landed import LandedKV
from tilert_stream.cluster.admission import Admission
from tilert_stream.completion import Completion
from tilert_stream.errors import ContextLengthExceeded, KVTimeout
from tilert_stream.events import (
    Finished,
    GenerateRequest,
    KVReady,
    Prefilled,
    PromptUsage,
    Reserved,
    TokenBatch,
)
from tilert_stream.lifecycle import CLOCK
from tilert_transports.control.errors import GrantGone
from tilert_transports.control.reservation import Failed, Landed

if TYPE_CHECKING:
    from collections.abc import Callable

    from tilert_engine.decode_worker import DecodeJob, DecodeWorker
    from tilert_stream.cluster.admission import Ticket
    from tilert_stream.scope import RequestScope
    from tilert_transports.control.regions import LandingRegion
    from tilert_transports.control.reservation import Event, Granted
    from tilert_transports.control.reservations import Reservations

__all__ = ("DecodeNode", "DecodeOrder", "FirstToken")

SequenceT = TypeVar("SequenceT")


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeOrder(GenerateRequest):
    """What a router asks of a decode node. The prompt's ids stay with prefill."""

    first_token: int
    """Prefill's; it counts as the first of ``limits.max_tokens``."""
    generation: int
    """Of the grant that the router was given."""
    prompt_ids: tuple[int, ...] = ()
    kv_timeout: float = inf
    """Seconds that the KV cache may take."""
    times: dict[str, float] = field(default_factory=dict[str, float], compare=False)
    """Seconds on ``CLOCK`` at which ``landed`` and ``imported`` came true."""


@dataclass(slots=True)
class _Promise:
    """A slot, and the event that a KV cache for it has landed."""

    request: str
    ticket: Ticket
    landed: Completion[Landed]
    claimed: bool = False


class DecodeNode(Generic[SequenceT]):
    """The ``DecodeNode`` of a decode process: its KV caches come from elsewhere.

    :param reservations: makes the landing regions' side from what learns how each went.
    :param view: the bytes of a landing region.
    """

    def __init__(
        self,
        worker: DecodeWorker[SequenceT],
        reservations: Callable[[Callable[[Event], None]], Reservations],
        view: Callable[[LandingRegion], memoryview],
    ) -> None:
        self._worker = worker
        self._view = view
        self.reservations = reservations(self._learn)
        self.admission = Admission(range(worker.engine.slots), timeout=0)
        self._promises: dict[int, _Promise] = {}

    # --- what routers ask --------------------------------------------------------------------

    async def promise(self, request: str, max_tokens: int) -> Granted:
        """Hold a slot and a landing region for ``request``.

        :param max_tokens: prompt and answer together.
        :raises ~tilert_stream.errors.Busy: no slot or no region is free.
        :raises ~tilert_stream.errors.ContextLengthExceeded: they can never fit.
        :raises ~tilert_transports.control.errors.RequestInUse: a live request has this id.
        """
        longest = self._worker.engine.max_seq_len
        if max_tokens > longest:
            raise ContextLengthExceeded(
                f"prompt and answer have {max_tokens} tokens, the window of this decode node is"
                f" {longest}: shorten the prompt or lower max_tokens"
            )
        ticket = await self.admission.acquire()
        try:
            granted = self.reservations.reserve(request, max_tokens)
            promise = _Promise(request, ticket, Completion())
        except BaseException:
            ticket.free()
            raise
        self._promises[granted.generation] = promise
        return granted

    def renew(self, generation: int) -> None:
        """Give a promise its full time again.

        :raises ~tilert_transports.control.errors.GrantGone: it is over.
        """
        self.reservations.renew(generation)

    def withdraw(self, request: str) -> bool:
        """Give back the promise of ``request`` that nobody has claimed; False if there is none."""
        for generation, promise in tuple(self._promises.items()):
            if promise.request == request and not promise.claimed:
                self._forget(generation, "cancelled")
                return True
        return False

    # --- what prefill does -------------------------------------------------------------------

    def _learn(self, event: Event) -> None:
        promise = self._promises.get(event.generation)
        if promise is None:
            return
        if isinstance(event, Landed):
            promise.landed.set(event)
        elif isinstance(event, Failed):
            promise.landed.fail(event.error)
            if not promise.claimed:
                del self._promises[event.generation]
                promise.ticket.free()

    def _forget(self, generation: int, reason: str) -> None:
        promise = self._promises.pop(generation, None)
        if promise is not None:
            self.reservations.release(generation, reason)
            promise.ticket.free()

    # --- what a request's stages ask ---------------------------------------------------------

    async def reserve(self, request: GenerateRequest, scope: RequestScope) -> Reserved:
        """Claim the promise that the router was given.

        :raises ~tilert_transports.control.errors.GrantGone: it is over, or claimed already.
        """
        order = cast("DecodeOrder", request)
        promise = self._promises.get(order.generation)
        if promise is None or promise.claimed or promise.request != order.id:
            raise GrantGone(
                f"grant {order.generation} of request {order.id} has expired, was released or is in"
                " use; reserve again"
            )
        promise.claimed = True
        scope.lease.hold("slot", lambda reason: self._forget(order.generation, reason))
        return Reserved(promise.ticket.slot, promise)

    async def import_kv(self, prefilled: Prefilled, scope: RequestScope) -> KVReady:
        """Await that the KV cache has landed, and have the engine import it.

        :raises ~tilert_transports.control.errors.ControlError: prefill gave it up, or has gone.
        :raises ~tilert_stream.errors.ContextLengthExceeded: the prompt is longer than promised.
        """
        order = cast("DecodeOrder", scope.request)
        promise = cast("_Promise", prefilled.reserved.grant)
        with move_on_after(order.kv_timeout):
            await promise.landed.wait()
        if not promise.landed.done:
            raise KVTimeout(
                f"the KV cache did not land within {order.kv_timeout:g} s (timeout_s); try again"
            )
        order.times["landed"] = CLOCK()
        landed = self.reservations.take(order.generation)
        scope.usage = PromptUsage(landed.tokens)
        self._check_length(landed.tokens + order.limits.max_tokens)
        kv = LandedKV(self._view(landed.region), landed.tokens, landed.checksums)
        job = self._worker.open(
            promise.ticket.slot,
            kv,
            order.first_token,
            order.limits,
            order.sampling,
            on_closed=promise.ticket.free,
        )
        scope.lease.hold("sequence", lambda _reason: self._worker.close(job))
        await job.opened.wait()
        self.reservations.release(order.generation, "imported")
        order.times["imported"] = CLOCK()
        return KVReady(job)

    def _check_length(self, length: int) -> None:
        longest = self._worker.engine.max_seq_len
        if length > longest:
            raise ContextLengthExceeded(
                f"prompt and answer have {length} tokens, the window of this decode node is"
                f" {longest}: shorten the prompt or lower max_tokens"
            )

    async def decode(self, ready: KVReady, scope: RequestScope) -> None:
        """Send the first token, and begin; the owner thread fills the mailbox."""
        order = cast("DecodeOrder", scope.request)
        scope.mailbox.put(TokenBatch((order.first_token,)))
        self._worker.begin(cast("DecodeJob[SequenceT]", ready.sequence), scope.mailbox)

    @property
    def requests(self) -> list[str]:
        """The ids that hold a slot, promised or decoding."""
        return [promise.request for promise in self._promises.values()]

    @property
    def full(self) -> bool:
        """Whether no slot is free."""
        statistics = self.admission.statistics()
        return statistics.busy == statistics.slots


class FirstToken:
    """``Reserved`` → ``Prefilled``: what the router already knows of the prompt.

    A first token that ends the request ends it here, before its KV cache is waited for.
    """

    stage_name = "first_token"

    async def call(self, item: Reserved, scope: RequestScope) -> Prefilled | Finished:
        """Take the first token out of the order."""
        order = cast("DecodeOrder", scope.request)
        first = TokenBatch((order.first_token,))
        _, finished = order.limits.cut(first.ids, 0)
        if finished is None:
            return Prefilled(item, first, None, PromptUsage(0))
        scope.mailbox.put(TokenBatch(first.ids, ends_with_stop=finished.reason == "stop"))
        return finished
