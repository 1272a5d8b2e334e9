"""The running whole: a pipeline, and the engines' threads behind it.

Embedded without HTTP::

    async with service:
        async for delta in service.stream(request):
            print(delta.text, end="")
"""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from anyio import AsyncContextManagerMixin, CancelScope, Event, to_thread

from .background import background_tasks
from .completion import Completion
from .errors import EngineDied, NotReady
from .lease import Ledger
from .opened import Opened
from .telemetry.observer import Observers
from .telemetry.record import RequestRecord
from .time_limits import TimeLimits
from .watchdog import Watchdog

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    from anyio.abc import TaskGroup

    from .abc import Transform
    from .events import GenerateRequest
    from .pipeline import Pipeline
    from .scope import RequestScope
    from .stream import Stream
    from .trace import Trace

__all__ = ("Service", "Worker")

Out = TypeVar("Out")
Encoded = TypeVar("Encoded")


class Worker(Protocol):
    """An engine's owner thread."""

    def start(self, on_death: Callable[[EngineDied], object], /) -> None:
        """Start the thread; it calls ``on_death`` if its engine dies."""
        ...

    def stop(self) -> None:
        """End the thread; waits for its present turn."""
        ...


class Service(AsyncContextManagerMixin, Generic[Out]):
    """Enter it once, before the first request; it can be entered again after it was left.

    :param pipeline: what a request runs through, up to its text.
    :param workers: started on entry, stopped on exit.
    :param resources: what is entered before the first request, and left after the last.
    :param trace: called at each step of each request.
    :param coalesce: seconds to wait for more tokens after each wake; 0 sends what is there.
    :param time_limits: how long each part of a request may take.
    """

    def __init__(
        self,
        pipeline: Pipeline[Out],
        *,
        workers: Sequence[Worker] = (),
        resources: Sequence[Callable[[], AbstractAsyncContextManager[object]]] = (),
        trace: Trace | None = None,
        coalesce: float = 0,
        time_limits: TimeLimits | None = None,
    ) -> None:
        self.pipeline = pipeline
        self.ledger = Ledger()
        """What all requests together hold; empty when none lives."""
        self.observers = Observers()
        """Who is told of requests; whoever is to be told of all is added before the first."""
        self._workers = workers
        self._resources = resources
        self._trace = trace
        self._coalesce = coalesce
        self._watchdog = Watchdog(time_limits or TimeLimits())
        self._tasks: TaskGroup | None = None
        self._died: Completion[EngineDied] | None = None
        self._draining = False
        self._streams: set[Stream[Any]] = set()
        """Begun in the service's own task group, by readers who may outlive it."""

    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[Service[Out]]:
        async with AsyncExitStack() as stack:
            for resource in self._resources:
                await stack.enter_async_context(resource())
            await stack.enter_async_context(self._run())
            yield self

    @asynccontextmanager
    async def _run(self) -> AsyncGenerator[None]:
        died = self._died = Completion()
        self._death_known = Event()
        self._draining = False
        try:
            async with background_tasks() as self._tasks:
                try:
                    for worker in self._workers:
                        worker.start(died.set)
                    self._tasks.start_soon(self._announce_death, died, name="engine death")
                    self._tasks.start_soon(self._watchdog.run, name="watchdog")
                    yield
                finally:
                    for stream in self._streams:
                        # It may be produced in a task that is not cancelled here, or in none.
                        stream.interrupt()
        finally:
            self._tasks = None
            for stream in self._streams:
                # Its producer may have been cancelled before its first step.
                stream.produced()
            with CancelScope(shield=True):
                for worker in self._workers:
                    await to_thread.run_sync(worker.stop)

    async def _announce_death(self, died: Completion[EngineDied]) -> None:
        # A completion has one waiter; an event has any number.
        await died.wait()
        self._death_known.set()

    @property
    def ready(self) -> bool:
        """Whether a new request has a fair chance: entered, not draining, every engine alive."""
        died = self._died
        return self._tasks is not None and not self._draining and not (died and died.done)

    def drain(self) -> None:
        """Turn ``ready`` false: load balancers look elsewhere, requests are still served."""
        self._draining = True

    async def died(self) -> EngineDied:
        """Wait for the death of an engine; the process should end with it.

        Any number of tasks may wait.

        :raises ~tilert_stream.errors.NotReady: the service has not been entered.
        """
        _, died = self._entered()
        await self._death_known.wait()
        return died.value

    def _entered(self) -> tuple[TaskGroup, Completion[EngineDied]]:
        if self._tasks is None or self._died is None:
            raise NotReady(
                "the service is not running: enter it first ('async with service:'); mounted in"
                " another ASGI app, enter app.lifespan in that app's own lifespan"
            )
        return self._tasks, self._died

    def _alive(self) -> TaskGroup:
        tasks, died = self._entered()
        if died.done:
            # An error of its own for each request: a raised one gathers tracebacks.
            raise EngineDied(died.value.message) from died.value.__cause__
        return tasks

    def open(
        self,
        request: GenerateRequest,
        encode: Callable[[RequestScope], Transform[Out, Encoded]],
        *,
        record: RequestRecord | None = None,
    ) -> AbstractAsyncContextManager[Stream[Encoded]]:
        """Run ``request``, its text going through ``encode``; leaving gives everything back.

        :param record: what observers are to know of it besides; its tokens are counted there.
        :raises ~tilert_stream.errors.NotReady: the service has not been entered.
        :raises ~tilert_stream.errors.EngineDied: an engine is dead.
        """
        tasks = self._alive()
        pipeline = self.pipeline.encoded()
        return Opened(lambda: self._make(pipeline, request, record, encode), tasks, self._streams)

    def _make(
        self,
        pipeline: Pipeline[Any],
        request: GenerateRequest,
        record: RequestRecord | None,
        encode: Callable[[RequestScope], Transform[Any, Any]] | None = None,
    ) -> Stream[Any]:
        observed = bool(self.observers)
        return pipeline.stream(
            request,
            ledger=self.ledger,
            trace=self._trace,
            coalesce=self._coalesce,
            watchdog=self._watchdog,
            record=RequestRecord() if record is None and observed else record,
            observer=self.observers if observed else None,
            encode=encode,
        )

    async def stream(self, request: GenerateRequest) -> AsyncGenerator[Out]:
        """The answer to ``request``, item by item, without any wire format.

        Leaving the loop early, with ``aclose`` or by cancellation, stops the engine.

        :raises ~tilert_stream.errors.TilertStreamError: the request failed.
        """
        # The producer lives in the service's task group: a generator must not yield inside one of
        # its own, and closing the stream is synchronous.
        tasks = self._alive()
        stream = self._make(self.pipeline, request, None)
        stream.start(tasks)
        self._streams.add(stream)
        try:
            async for items in stream:
                for item in items:
                    yield item
        finally:
            self._streams.discard(stream)
            stream.close()
        if stream.outcome is not None and stream.outcome.error is not None:
            raise stream.outcome.error
