"""Prefill and decode in this process: the engines' workers behind the contracts of a node.

In: the stages' calls, on the event loop. Out: commands to the owner threads. What is claimed here
goes into the request's lease, which is the only way back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar, cast

from tilert_engine.decode_worker import DecodeWorker
from tilert_engine.prefill_worker import PrefillWorker
from tilert_stream.cluster.admission import Admission
from tilert_stream.errors import ContextLengthExceeded, InvalidRequest
from tilert_stream.events import KVReady, Prefilled, Reserved
from tilert_stream.pipeline import Pipeline
from tilert_stream.service import Service
from tilert_stream.stages.decode import Decode
from tilert_stream.stages.detokenize import Detokenize
from tilert_stream.stages.kv_import import ImportKV
from tilert_stream.stages.parse import ParseOutput
from tilert_stream.stages.prefill import Prefill
from tilert_stream.stages.reserve import Reserve
from tilert_stream.stages.stop import StopStrings

if TYPE_CHECKING:
    from tilert_engine.decode_worker import DecodeJob
    from tilert_stream.abc import DecodeEngine, PrefillEngine
    from tilert_stream.cluster.admission import Ticket
    from tilert_stream.events import GenerateRequest, TextDelta
    from tilert_stream.model.tokenizer import TextTokenizer
    from tilert_stream.parsers.abc import OutputParser
    from tilert_stream.scope import RequestScope
    from tilert_stream.time_limits import TimeLimits
    from tilert_stream.trace import Trace

__all__ = ("LocalDecode", "LocalPrefill", "local_service")

RunT = TypeVar("RunT")
SequenceT = TypeVar("SequenceT")


class LocalPrefill(Generic[RunT]):
    """A ``PrefillNode`` on an engine in this process."""

    def __init__(self, worker: PrefillWorker[RunT]) -> None:
        self._worker = worker

    async def prefill(self, reserved: Reserved, scope: RequestScope) -> Prefilled:
        """Compute the prompt; leaving the lease gives it up before the next chunk."""
        request = scope.request
        job = self._worker.submit(request.prompt_ids, request.limits, request.sampling)
        hold = scope.lease.hold("prefill", lambda _reason: self._worker.close(job))
        result = await job.computed.wait()
        hold.release("prefilled")
        return Prefilled(reserved, result.first, result.kv, result.usage)


class LocalDecode(Generic[SequenceT]):
    """A ``DecodeNode`` on an engine in this process.

    :param queue_timeout: seconds a request waits for a slot; 0 refuses at once.
    :param max_queue: how many may wait.
    """

    def __init__(
        self, worker: DecodeWorker[SequenceT], *, queue_timeout: float = 30, max_queue: int = 256
    ) -> None:
        self._worker = worker
        self.admission = Admission(
            range(worker.engine.slots), timeout=queue_timeout, max_waiting=max_queue
        )

    async def reserve(self, request: GenerateRequest, scope: RequestScope) -> Reserved:
        """Wait in line for a slot.

        :raises ~tilert_stream.errors.Busy: none came free in time, or the line is full.
        :raises ~tilert_stream.errors.InvalidRequest: there is no prompt, or nothing to generate.
        :raises ~tilert_stream.errors.ContextLengthExceeded: the request can never fit.
        """
        if not request.prompt_ids:
            raise InvalidRequest("the prompt has no token; it needs at least one")
        if request.limits.max_tokens < 1:
            raise InvalidRequest(
                f"max_tokens is {request.limits.max_tokens}; it must be 1 or more",
                param="max_tokens",
            )
        longest = self._worker.engine.max_seq_len
        length = len(request.prompt_ids) + request.limits.max_tokens
        if length > longest:
            raise ContextLengthExceeded(
                f"the prompt has {len(request.prompt_ids)} tokens and max_tokens is"
                f" {request.limits.max_tokens}, together {length}; the window is {longest}:"
                " shorten the prompt or lower max_tokens"
            )
        ticket = await self.admission.acquire()
        scope.lease.hold("slot", lambda _reason: ticket.free())
        return Reserved(ticket.slot, ticket)

    async def import_kv(self, prefilled: Prefilled, scope: RequestScope) -> KVReady:
        """Copy the KV cache into the slot, on the engine's thread."""
        request = scope.request
        ticket = cast("Ticket", prefilled.reserved.grant)
        job = self._worker.open(
            ticket.slot,
            prefilled.kv,
            prefilled.first.ids[0],
            request.limits,
            request.sampling,
            on_closed=ticket.free,
        )
        scope.lease.hold("sequence", lambda _reason: self._worker.close(job))
        await job.opened.wait()
        return KVReady(job)

    async def decode(self, ready: KVReady, scope: RequestScope) -> None:
        """Begin; the owner thread fills the mailbox."""
        self._worker.begin(cast("DecodeJob[SequenceT]", ready.sequence), scope.mailbox)


def local_service(
    prefill: PrefillEngine[RunT],
    decode: DecodeEngine[SequenceT],
    tokenizer: TextTokenizer,
    *,
    queue_timeout: float = 30,
    max_queue: int = 256,
    trace: Trace | None = None,
    coalesce: float = 0,
    time_limits: TimeLimits | None = None,
    parser: OutputParser | None = None,
) -> Service[TextDelta]:
    """Everything in one process: two engines that share nothing but the KV cache handed over.

    :param queue_timeout: seconds a request waits for a decode slot; 0 refuses at once.
    :param max_queue: how many requests may wait.
    :param parser: reads reasoning and tool calls out of answers; None: they are text.
    :param coalesce: seconds to wait for more tokens after each wake.
    :param time_limits: how long each part of a request may take.
    """
    prefill_worker = PrefillWorker(prefill)
    decode_worker = DecodeWorker(decode)
    prefill_node = LocalPrefill(prefill_worker)
    decode_node = LocalDecode(decode_worker, queue_timeout=queue_timeout, max_queue=max_queue)
    pipeline = (
        Pipeline()
        .then(Reserve(decode_node))
        .then(Prefill(prefill_node))
        .then(ImportKV(decode_node))
        .then(Decode(decode_node))
        .then(Detokenize(tokenizer if parser is None else tokenizer.showing(parser.markers)))
        .then(StopStrings())
    )
    if parser is not None:
        pipeline = pipeline.then(ParseOutput(parser))
    return Service(
        pipeline,
        workers=(prefill_worker, decode_worker),
        trace=trace,
        coalesce=coalesce,
        time_limits=time_limits,
    )
