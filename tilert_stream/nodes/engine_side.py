"""What decode nodes have in common, however their KV caches come: slots, import, tokens.

In: a slot, and a landing region whose cache is complete. Out: tokens in the request's mailbox.
Everything here belongs to the event loop's thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar, cast

from tilert_engine.layouts.landed import LandedKV
from tilert_stream.abc import GrammarEngine, capabilities_of
from tilert_stream.cluster.admission import Admission
from tilert_stream.errors import ContextLengthExceeded, UnsupportedParameter
from tilert_stream.events import KVReady, PromptUsage, TokenBatch
from tilert_stream.lifecycle import CLOCK

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from tilert_engine.decode_worker import DecodeJob, DecodeWorker
    from tilert_engine.layouts.abc import Landed as LandedBytes
    from tilert_stream.cluster.admission import Ticket
    from tilert_stream.events import Capability
    from tilert_stream.scope import RequestScope
    from tilert_transports.control.regions import LandingRegion
    from tilert_transports.control.reservation import Landed

    from .decode_orders import DecodeOrder

__all__ = ("EngineSide",)

SequenceT = TypeVar("SequenceT")


class EngineSide(Generic[SequenceT]):
    """The slots of one engine.

    :param view: the bytes of a landing region.
    """

    def __init__(
        self,
        worker: DecodeWorker[SequenceT],
        view: Callable[[LandingRegion], LandedBytes],
    ) -> None:
        self._worker = worker
        self._view = view
        self.admission = Admission(range(worker.engine.slots), timeout=0)

    @property
    def full(self) -> bool:
        """Whether no slot is free."""
        statistics = self.admission.statistics()
        return statistics.busy == statistics.slots

    @property
    def window(self) -> int:
        """Tokens of prompt and answer that a slot has room for."""
        return self._worker.engine.max_seq_len

    def check_length(self, length: int) -> None:
        """Refuse what never fits.

        :raises ~tilert_stream.errors.ContextLengthExceeded: ``length`` tokens do not.
        """
        if length > self.window:
            raise ContextLengthExceeded(
                f"prompt and answer have {length} tokens, the window of this decode node is"
                f" {self.window} (--max-seq-len): shorten the prompt or lower max_tokens"
            )

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What a request can ask for."""
        return capabilities_of(self._worker.engine)

    def check_grammar(self, grammar: str, param: str) -> None:
        """Have the engine compile ``grammar``; blocks, from any thread.

        :raises ~tilert_stream.errors.InvalidRequest: it cannot be followed.
        """
        engine = self._worker.engine
        if isinstance(engine, GrammarEngine):
            engine.check_grammar(grammar, param)

    def check_needs(self, needs: Collection[str]) -> None:
        """Refuse what the engine is not capable of.

        :raises ~tilert_stream.errors.UnsupportedParameter: the first of them.
        """
        lacking = sorted(set(needs) - self.capabilities)
        if lacking:
            raise UnsupportedParameter(
                f"{lacking[0]} is set, and this decode node's engine has none; leave it out",
                param=lacking[0],
            )

    async def open(
        self, order: DecodeOrder, ticket: Ticket, landed: Landed, scope: RequestScope
    ) -> KVReady:
        """Have the engine import what has landed; the region may be given back then.

        :raises ~tilert_stream.errors.EngineFault: it does not take the cache.
        """
        order.times["landed"] = CLOCK()
        scope.usage = PromptUsage(landed.tokens)
        if scope.record is not None:
            scope.record.kv_bytes = landed.nbytes

        def converted() -> None:
            order.times["converted"] = CLOCK()

        kv = LandedKV(
            self._view(landed.region),
            landed.tokens,
            landed.checksums,
            landed.last_token,
            converted,
        )
        job = self._worker.open(
            ticket.slot,
            kv,
            order.first_token,
            order.limits,
            order.sampling,
            on_closed=ticket.free,
        )
        scope.lease.hold("sequence", lambda _reason: self._worker.close(job))
        await job.opened.wait()
        order.times["imported"] = CLOCK()
        return KVReady(job)

    async def decode(self, ready: KVReady, scope: RequestScope) -> None:
        """Send the first token, and begin; the owner thread fills the mailbox."""
        order = cast("DecodeOrder", scope.request)
        scope.mailbox.put(TokenBatch((order.first_token,)))
        self._worker.begin(cast("DecodeJob[SequenceT]", ready.sequence), scope.mailbox)
