"""One request running through a pipeline, as its reader sees it.

::

    producer task                          writer: whoever iterates over the Stream
    Reserve ▸ Prefill ▸ ImportKV ▸ Decode ──► Mailbox ──► [ transforms, fused ] ──► items of a wake

Nothing runs between the mailbox and the reader but plain calls, until a stage of the user awaits:
then each such stage gets a task and a bounded channel. The task of a reader that only forwards is
the producer's, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast

from anyio import CancelScope, Event
from anyio.lowlevel import checkpoint

from .channels import StageRunner, interrupted
from .errors import Cancelled, TilertStreamError
from .events import Finished
from .forwarding import Forwarding
from .fusion import Chain, fuse, stage_error
from .lifecycle import State
from .link import Kind
from .trace import Span, mark

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from anyio.abc import TaskGroup

    from .abc import Source, Step
    from .link import Link
    from .scope import RequestScope
    from .telemetry.observer import Observer
    from .watchdog import Watchdog

__all__ = ("Stream",)

Out = TypeVar("Out")


class Stream(Generic[Out]):
    """The answer of one request: iterate over it, then ``close`` it.

    Each iteration yields a non-empty list: everything that one wake has made ready.

    :param upstream: of the pipeline, the steps and the source.
    :param downstream: its transforms and stages.
    :param coalesce: seconds to wait for more after each wake; 0 sends what is there.
    :param watchdog: ends it when one of its time limits has run out.
    :param observer: is told when it begins and when it has ended; it never raises.
    """

    __slots__ = (
        "_cancel_scope",
        "_closed",
        "_coalesce",
        "_downstream",
        "_head",
        "_observer",
        "_produced",
        "_producing",
        "_stages",
        "_stopped",
        "_tally",
        "_task_group",
        "_upstream",
        "_watchdog",
        "outcome",
        "scope",
    )

    def __init__(
        self,
        upstream: Sequence[Link],
        downstream: Sequence[Link],
        scope: RequestScope,
        *,
        coalesce: float = 0,
        watchdog: Watchdog | None = None,
        observer: Observer | None = None,
    ) -> None:
        self.scope = scope
        self.outcome: Finished | None = None
        """How the answer ended. Known together with its last items; None while it runs."""
        self._closed = False
        self._producing = True
        self._produced: Event | None = None
        self._coalesce = coalesce
        self._watchdog = watchdog
        self._observer = observer
        self._tally = None if scope.record is None else scope.record.tokens
        self._cancel_scope: CancelScope | None = None
        self._stopped = False
        self._task_group: TaskGroup | None = None
        """Where the producer is to run if its reader does not take it; None: somebody runs it."""
        self._upstream = upstream
        self._downstream = downstream
        self._head: Chain[object, Out] = Chain()
        self._stages: StageRunner[Out] | None = None

    def start(self, task_group: TaskGroup, *, forwarded: bool = False) -> None:
        """Let the request begin, in a task of ``task_group``. It never raises there.

        :param forwarded: it will be read by ``forward``, and at once: where no stage awaits, its
            reader's task has nothing to do but to produce it, and no other is needed.
        :raises ~tilert_stream.errors.PipelineError: a factory made something that is no stage.
        :raises ~tilert_stream.errors.StageError: a factory raised.
        """
        mark(self.scope.trace, self.scope.request.id, "request", "started")
        try:
            self._begin()
        except BaseException as error:
            self._abandon(error)
            raise
        if self._watchdog is not None:
            self._watchdog.add(self)
        if self._observer is not None:
            self._observer.began(self.scope)
        self._task_group = task_group
        if not forwarded or self._stages is not None or self._coalesce:
            self._start_task()

    def _start_task(self) -> None:
        task_group, self._task_group = self._task_group, None
        if task_group is not None:
            task_group.start_soon(self._run, name=f"request {self.scope.request.id}")

    def _begin(self) -> None:
        """What other nodes are to do is asked of them first: they work while stages are made."""
        scope = self.scope
        # Asked by name: a check of the protocol costs more than the call.
        start_early = getattr(self._upstream[0].target, "start_early", None)
        if start_early is not None:
            start_early(scope.request, scope)
        head, segments = fuse(self._downstream, scope)
        self._head = cast("Chain[object, Out]", head)
        if segments:
            self._stages = StageRunner(scope.mailbox, head, segments, self._tally)

    def _abandon(self, error: BaseException) -> None:
        """Give back what a request holds that could not begin."""
        self._closed = True
        self.scope.lease.release("error")
        if self._observer is not None and isinstance(error, TilertStreamError):
            self.scope.lifecycle.end(State.FAILED)
            self._observer.ended(self.scope, Finished.failed(error))

    async def _run(self) -> None:
        try:
            await self._work()
        except BaseException:
            # The task group was cancelled, and its reader may live outside of it.
            self.scope.mailbox.put(interrupted())
            raise

    async def _work(self) -> None:
        try:
            with CancelScope() as self._cancel_scope:
                if self._stopped:
                    self._cancel_scope.cancel()
                if self._stages is None:
                    await self._produce()
                else:
                    await self._stages.run(self._produce)
        finally:
            self.produced()

    async def work_for_reader(self) -> None:
        """Produce in the reader's task what no other task does. A checkpoint if something does."""
        if self._task_group is not None:
            self._task_group = None
            if self._stopped:
                self.produced()
            else:
                await self._work()

    def produced(self) -> None:
        """Nothing works for the request any more. Sync, idempotent."""
        self._producing = False
        if self._produced is not None:
            self._produced.set()

    async def wait_produced(self) -> None:
        """Wait until nothing works for a request that was closed. A checkpoint only if it does.

        Cancelling does not end it: what was asked to end ends.
        """
        if self._producing:
            self._produced = Event()
            with CancelScope(shield=True):
                await self._produced.wait()

    async def _produce(self) -> None:
        """Steps one after another, then the source: the life of the request up to its tokens."""
        scope = self.scope
        item: object = scope.request
        for link in self._upstream:
            try:
                if scope.trace is None:
                    item = await self._step(link, item)
                else:
                    with Span(scope.trace, scope.request.id, link.name):
                        item = await self._step(link, item)
            except Exception as error:  # noqa: BLE001 - a step may raise anything; it ends its request
                item = Finished.failed(stage_error(link.name, error))
            if isinstance(item, Finished):
                scope.mailbox.put(item)
                return
            if self.outcome is not None:
                # A stop string has matched in what the step has put: nothing more is wanted.
                return

    def _step(self, link: Link, item: object) -> Awaitable[object]:
        if link.kind is Kind.SOURCE:
            return cast("Source[object, object]", link.target).produce(item, self.scope)
        return cast("Step[object, object]", link.target).call(item, self.scope)

    def __aiter__(self) -> Stream[Out]:
        return self

    async def __anext__(self) -> list[Out]:
        """What the next wake has made ready. Always a checkpoint.

        A failed request ends the iteration like any other: look at ``outcome``.
        """
        mailbox = self.scope.mailbox
        self._start_task()
        while self.outcome is None:
            if self._stages is not None:
                items, self.outcome = await self._stages.receive()
            else:
                await mailbox.wait()
                if self._coalesce:
                    await mailbox.linger(self._coalesce)
                items = self.take()
            if items:
                return items
        raise StopAsyncIteration

    def take(self) -> list[Out]:
        """What is ready, without waiting; an empty list if nothing is. Sync.

        Only for a pipeline without a stage that awaits.
        """
        arrived = self.scope.mailbox.drain()
        if self._tally is not None:
            self._tally.note(arrived)
        items = self._head.run(arrived)
        self.outcome = self._head.outcome
        return items

    async def forward(
        self,
        sink: Callable[[list[Out]], bool],
        finish: Callable[[list[Out]], bool] | None = None,
    ) -> list[Out]:
        """Hand what each wake makes ready to ``sink``, until it says False or the end is there.

        The event loop calls it: no task takes a step for a token. Always a checkpoint.

        :param finish: gets the last items, which come with ``outcome``, in place of ``sink``; says
            whether it has taken them.
        :returns: the last items, if nobody has taken them; empty if there are none, and if ``sink``
            has said False.
        :raises Exception: what ``sink`` or ``finish`` raises.
        """
        if self.outcome is not None:
            await checkpoint()
        elif self._stages is None and not self._coalesce:
            return await Forwarding(self, sink, finish).run()
        while self.outcome is None:
            items = await anext(self, _NOTHING)
            if self.outcome is not None:
                return [] if finish is not None and finish(items) else items
            if not sink(items):
                break
        return []

    def fail(self, error: TilertStreamError) -> None:
        """End the request from outside; its reader gets what is ready, then ``error``. Sync.

        All it holds goes back at once, and not when the reader comes to look. The error travels
        through the stages like any end; called again, it cuts off a stage that keeps the end back.
        An answer that is complete stays so.
        """
        reason: Literal["cancelled", "error"] = "error"
        if isinstance(error, Cancelled):
            reason = "cancelled"
        failed = Finished(reason, error=error)
        put = self.scope.mailbox.put(failed)
        self.scope.lease.release(failed.reason)
        if self._stages is None:
            self.stop_producing()
        elif not put:
            self._stages.interruption = failed
            self.stop_producing()

    def interrupt(self) -> None:
        """Its service is being left, and its reader may live on: nothing more comes. Sync."""
        self.scope.mailbox.put(interrupted())
        self.stop_producing()

    def stop_producing(self) -> None:
        """What comes now is of no use any more. Sync, idempotent."""
        if self._producing:
            # A task that has not taken its first step looks for it then.
            self._stopped = True
            if self._cancel_scope is not None:
                self._cancel_scope.cancel()

    def close(self) -> None:
        """End the request if it still runs, and give back all it holds. Sync, idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._watchdog is not None:
            self._watchdog.discard(self)
        outcome = self.outcome
        if outcome is None:
            gone = Cancelled("the reader left before the end")
            outcome = self.outcome = Finished("cancelled", error=gone)
        self.scope.lifecycle.end(_END.get(outcome.reason, State.DONE))
        self.scope.mailbox.close()
        self.scope.lease.release(outcome.reason)
        # First the tasks, then their channels: a closed channel would look to a stage like a fault.
        self.stop_producing()
        if self._task_group is not None:
            # Its reader has left before it began.
            self._task_group = None
            self.produced()
        if self._stages is not None:
            self._stages.close()
        if self._observer is not None:
            self._observer.ended(self.scope, outcome)
        phase: Literal["complete", "failed"] = "failed" if outcome.error else "complete"
        mark(self.scope.trace, self.scope.request.id, "request", phase, outcome.error)


_NOTHING: list[Any] = []

_END = {"error": State.FAILED, "cancelled": State.CANCELLED}
