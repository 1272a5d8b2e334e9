"""The contracts between rooms. None needs a base class: an object that fits, fits.

What a stage does, and in which task it runs, follow from its shape:

=============  ==========================================  =====================================
contract       shape                                       runs
=============  ==========================================  =====================================
``Step``       ``async call(item, scope) -> item``         once a request, in the producer task
``Source``     ``async produce(item, scope) -> None``      once; feeds the request's mailbox
``Transform``  ``feed(item)``, ``finish(outcome)``         fused with its neighbours, no I/O
``Stage``      ``async run(receive, send)``                a task and a bounded channel of its own
=============  ==========================================  =====================================

Steps and sources keep no state of a request and serve all of them. Transforms and stages that
keep state are made per request by a ``StageFactory``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar, runtime_checkable

from .events import PLAIN_CAPABILITIES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence

    from .events import (
        Capability,
        Finished,
        GenerateRequest,
        Harvest,
        KVReady,
        Limits,
        Prefilled,
        PromptUsage,
        Reserved,
        Sampling,
        TokenBatch,
    )
    from .scope import RequestScope

__all__ = (
    "CapableEngine",
    "DecodeEngine",
    "DecodeNode",
    "EarlyStep",
    "GrammarEngine",
    "PrefillEngine",
    "PrefillNode",
    "PrefillResult",
    "Receive",
    "Send",
    "Source",
    "Stage",
    "StageFactory",
    "Step",
    "Transform",
    "capabilities_of",
)

In = TypeVar("In")
Out = TypeVar("Out")
In_contra = TypeVar("In_contra", contravariant=True)
Out_co = TypeVar("Out_co", covariant=True)
SequenceT = TypeVar("SequenceT")
RunT = TypeVar("RunT")


# --- stages ----------------------------------------------------------------------------------


@runtime_checkable
class Step(Protocol[In_contra, Out_co]):
    """Awaited once a request: reserve, prefill, KV import."""

    async def call(self, item: In_contra, scope: RequestScope, /) -> Out_co | Finished:
        """Turn ``item`` into the next message, or end the request here with ``Finished``."""
        ...


class EarlyStep(Protocol[In_contra]):
    """What the first step of a pipeline may be besides: one that begins before it is awaited.

    Until a request's task takes its first step, its stages are made and the loop turns once; what
    leaves before that, such as a call to another node, works meanwhile.
    """

    def start_early(self, item: In_contra, scope: RequestScope, /) -> None:
        """Begin what can be begun at once, for ``call`` to go on with. Sync.

        What it begins is left in ``scope.begun`` and held by the lease. It refuses nothing: that
        is ``call``'s to do.
        """
        ...


@runtime_checkable
class Source(Protocol[In_contra, Out_co]):
    """Starts what fills the request's mailbox: decode."""

    async def produce(self, item: In_contra, scope: RequestScope, /) -> Out_co | None:
        """Feed ``scope.mailbox`` until ``Finished`` is in it, or leave that to a thread.

        Items go through the mailbox, never through the return value, which is always None; its
        type only says what the mailbox carries.
        """
        ...


@runtime_checkable
class Transform(Protocol[In_contra, Out_co]):
    """A synchronous piece of a stream; neighbours are fused into one call."""

    def feed(self, item: In_contra, /) -> Iterable[Out_co | Finished]:
        """Take one item; yield what is ready.

        A yielded ``Finished`` ends the request early and is this transform's last word: neither
        ``feed`` nor ``finish`` is called on it again.
        """
        ...

    def finish(self, outcome: Finished, /) -> Iterable[Out_co | Finished]:
        """Yield what was held back. A yielded ``Finished`` replaces ``outcome``.

        Called once, on every end that comes from the left, an error included. It is not called
        when the request is cancelled or a stage on the right has ended it: nobody would read it.
        """
        ...


class Receive(Protocol[Out_co]):
    """A stage's input. Data flows left to right; iteration ends when the stream does."""

    @property
    def outcome(self) -> Finished | None:
        """How the stream ended; None before it has."""
        ...

    def __aiter__(self) -> AsyncIterator[Out_co]:
        """Iterate over the items that the stage on the left sends."""
        ...


class Send(Protocol[In_contra]):
    """A stage's output: awaiting it is the back-pressure."""

    async def __call__(self, item: In_contra | Finished, /) -> None:
        """Hand ``item`` to the stage on the right; ``Finished`` ends the stream early."""
        ...


@runtime_checkable
class Stage(Protocol[In_contra, Out_co]):
    """A piece of a stream that awaits (a moderation call, a database): pays for a channel."""

    async def run(self, receive: Receive[In_contra], send: Send[Out_co], /) -> None:
        """Read ``receive`` to its end. Returning passes its outcome on."""
        ...


StageFactory: TypeAlias = "Callable[[RequestScope], Transform[In, Out] | Stage[In, Out]]"


# --- nodes: what the produce stages talk to --------------------------------------------------


class PrefillNode(Protocol):
    """Where prompts are computed: an engine in this process, or a server elsewhere."""

    async def prefill(self, reserved: Reserved, scope: RequestScope, /) -> Prefilled:
        """Compute the prompt. Leaving the request's lease stops it."""
        ...


class DecodeNode(Protocol):
    """Where tokens are made: an engine in this process, or a server elsewhere."""

    async def reserve(self, request: GenerateRequest, scope: RequestScope, /) -> Reserved:
        """Claim a slot for as long as the request's lease holds it.

        :raises ~tilert_stream.errors.Busy: no slot came free in time, or the queue is full.
        :raises ~tilert_stream.errors.ContextLengthExceeded: the request can never fit.
        """
        ...

    async def import_kv(self, prefilled: Prefilled, scope: RequestScope, /) -> KVReady:
        """Bring the KV cache into the slot."""
        ...

    async def decode(self, ready: KVReady, scope: RequestScope, /) -> None:
        """Let tokens flow into the mailbox until ``Finished`` is in it."""
        ...


# --- engines: blocking calls, made by one owner thread only ----------------------------------


class PrefillResult(Protocol):
    """What a finished prefill run yields."""

    @property
    def first(self) -> TokenBatch:
        """The first token, one id."""
        ...

    @property
    def kv(self) -> object:
        """The KV cache, in the form that the paired decode engine takes."""
        ...

    @property
    def usage(self) -> PromptUsage:
        """The prompt's tokens."""
        ...


class PrefillEngine(Protocol[RunT]):
    """Computes prompts, a chunk at a time, so that a run can be given up between chunks."""

    @property
    def max_seq_len(self) -> int:
        """Tokens of prompt and answer together that fit."""
        ...

    def open(self, prompt_ids: Sequence[int], limits: Limits, sampling: Sampling, /) -> RunT:
        """Begin a run. Cheap: nothing is computed yet."""
        ...

    def advance(self, run: RunT, /) -> PrefillResult | None:
        """Compute one chunk; the result after the last one.

        :raises ~tilert_stream.errors.EngineFault: this run failed, the engine goes on. Anything
            else that is raised means that the engine is dead.
        """
        ...

    def close(self, run: RunT, /) -> None:
        """Free what the run holds; never the KV cache that was handed over."""
        ...


class DecodeEngine(Protocol[SequenceT]):
    """Advances up to ``slots`` sequences, each a chain of steps at a time."""

    @property
    def slots(self) -> int:
        """How many sequences can be open at once."""
        ...

    @property
    def max_seq_len(self) -> int:
        """Tokens of prompt and answer together that fit in a slot."""
        ...

    def open(
        self, slot: int, kv: object, first_token: int, limits: Limits, sampling: Sampling, /
    ) -> SequenceT:
        """Import ``kv`` into ``slot`` and stand ready to make the token after ``first_token``.

        ``first_token`` counts as the first of ``limits.max_tokens``; it ended nothing, or this
        would not have been called.
        """
        ...

    def advance(self, sequence: SequenceT, /) -> Harvest:
        """Run one chain. The harvest with ``finished`` set is the last.

        :raises ~tilert_stream.errors.EngineFault: this sequence failed, the engine goes on.
            Anything else that is raised means that the engine is dead.
        """
        ...

    def close(self, sequence: SequenceT, /) -> None:
        """Free the slot. Called once for every opened sequence, also after a fault."""
        ...


@runtime_checkable
class CapableEngine(Protocol):
    """An engine, of either kind, that declares what it can do."""

    @property
    def capabilities(self) -> frozenset[Capability]:
        """A request that needs another is refused before anything is computed for it."""
        ...


@runtime_checkable
class GrammarEngine(Protocol):
    """An engine, of either kind, that can hold an answer to a grammar."""

    def check_grammar(self, grammar: str, param: str, /) -> None:
        """Compile ``grammar``, so that an answer need not wait for that. Blocks; from any thread.

        :param param: the request's field that it came from (``Sampling.grammar_param``).
        :raises ~tilert_stream.errors.InvalidRequest: it cannot be followed; names ``param``, or the
            part of it that is at fault.
        """
        ...


def capabilities_of(engine: object, /) -> frozenset[Capability]:
    """What ``engine`` declares; ``PLAIN_CAPABILITIES`` where it declares nothing."""
    return engine.capabilities if isinstance(engine, CapableEngine) else PLAIN_CAPABILITIES
