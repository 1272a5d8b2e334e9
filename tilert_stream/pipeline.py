"""A pipeline: stages linked top to bottom, which reads as the life of a request.

It is an inert, immutable description. Each request runs through it with stages of its own::

    pipeline = (
        Pipeline()
        .then(Reserve(decode_node))      # GenerateRequest → Reserved
        .then(Prefill(prefill_node))     # Reserved → Prefilled, and the first token leaves
        .then(ImportKV(decode_node))     # Prefilled → KVReady
        .then(Decode(decode_node))       # KVReady → TokenBatch …
        .then(Detokenize(tokenizer))     # TokenBatch → TextDelta
        .then(StopStrings())             # TextDelta → TextDelta
    )

A link that does not fit is a type error. Order of shapes: steps, one source, then transforms and
stages.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast, overload

from anyio import create_task_group, get_cancelled_exc_class

from .errors import PipelineError
from .lease import Lease, Ledger
from .lifecycle import Lifecycle
from .link import Kind, Link, make_link
from .mailbox import Mailbox
from .rendering import render
from .scope import RequestScope
from .stream import Stream

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator

    from .abc import Source, Stage, Step, Transform
    from .events import GenerateRequest, TokenBatch
    from .telemetry.observer import Observer
    from .telemetry.record import RequestRecord
    from .trace import Trace
    from .watchdog import Watchdog

__all__ = ("Pipeline",)

Out = TypeVar("Out")
Out_co = TypeVar("Out_co", covariant=True)
Next = TypeVar("Next")


class Pipeline(Generic[Out_co]):
    """From ``GenerateRequest`` to ``Out``."""

    __slots__ = ("_encoded", "_links", "_parts")

    def __init__(self: Pipeline[GenerateRequest]) -> None:
        self._links: tuple[Link, ...] = ()
        # Found out by the first request.
        self._encoded: Pipeline[Any] | None = None
        self._parts: tuple[tuple[Link, ...], tuple[Link, ...]] | None = None

    # Factories first: pyright takes no class for a factory once it has tried it as an object.
    @overload
    def then(
        self,
        stage: Callable[[RequestScope], Transform[Out_co, Next]],
        *,
        name: str | None = ...,
    ) -> Pipeline[Next]: ...
    @overload
    def then(
        self, stage: Callable[[RequestScope], Stage[Out_co, Next]], *, name: str | None = ...
    ) -> Pipeline[Next]: ...
    @overload
    def then(self, stage: Step[Out_co, Next], *, name: str | None = ...) -> Pipeline[Next]: ...
    @overload
    def then(self, stage: Source[Out_co, Next], *, name: str | None = ...) -> Pipeline[Next]: ...
    @overload
    def then(self, stage: Transform[Out_co, Next], *, name: str | None = ...) -> Pipeline[Next]: ...
    @overload
    def then(self, stage: Stage[Out_co, Next], *, name: str | None = ...) -> Pipeline[Next]: ...
    @overload
    def then(self, stage: str, *, name: str | None = ...) -> Pipeline[Any]: ...

    def then(self, stage: object, *, name: str | None = None) -> Pipeline[Any]:
        """This pipeline with one more stage on the right.

        :param stage: a stage, a factory of one per request, a registered name or
            ``"module:attr"``.
        :param name: what it is called, in print, in traces, and for ``insert``; by default its
            registered name, or its class's in snake case.
        :raises ~tilert_stream.errors.PipelineError: it cannot stand here.
        """
        return self._made_of((*self._links, make_link(stage, name)))

    def insert(
        self, stage: object, *, where: Literal["after", "before", "replace"], anchor: str
    ) -> Pipeline[Any]:
        """This pipeline with ``stage`` placed relative to the stage named ``anchor``.

        :raises ~tilert_stream.errors.PipelineError: no stage has that name, or it cannot stand
            there.
        """
        names = [link.name for link in self._links]
        if anchor not in names:
            raise PipelineError(f"no stage {anchor!r} in this pipeline; it has {', '.join(names)}")
        index = names.index(anchor)
        start, stop = {
            "after": (index + 1, index + 1),
            "before": (index, index),
            "replace": (index, index + 1),
        }[where]
        return self._made_of((*self._links[:start], make_link(stage), *self._links[stop:]))

    def encoded(self) -> Pipeline[Any]:
        """This pipeline with one more stage: what each request's own ``scope.encode`` makes.

        :raises ~tilert_stream.errors.PipelineError: it has a stage of that name, ``encode``.
        """
        if self._encoded is None:
            self._encoded = self.then(_encoder, name="encode")
        return self._encoded

    @staticmethod
    def _made_of(links: tuple[Link, ...]) -> Pipeline[Any]:
        _check(links)
        made: Pipeline[Any] = cast("Pipeline[Any]", Pipeline())
        made._links = links
        return made

    @property
    def links(self) -> tuple[Link, ...]:
        """The stages, left to right."""
        return self._links

    def stream(
        self,
        request: GenerateRequest,
        *,
        ledger: Ledger | None = None,
        trace: Trace | None = None,
        coalesce: float = 0,
        watchdog: Watchdog | None = None,
        record: RequestRecord | None = None,
        observer: Observer | None = None,
        encode: Callable[[RequestScope], Transform[Any, Any]] | None = None,
    ) -> Stream[Out_co]:
        """The answer to ``request``, not yet started; whoever starts it must close it.

        :param encode: makes its last stage, in a pipeline that is ``encoded``.
        :raises ~tilert_stream.errors.PipelineError: the pipeline has no source.
        """
        if self._parts is None:
            self._parts = _parts(self._links)
        upstream, downstream = self._parts
        scope = RequestScope(
            request=request,
            lease=Lease(request.id, Ledger() if ledger is None else ledger),
            mailbox=cast("Mailbox[TokenBatch]", Mailbox()),
            lifecycle=Lifecycle(),
            trace=trace,
            record=record,
            encode=encode,
        )
        return Stream(
            upstream,
            downstream,
            scope,
            coalesce=coalesce,
            watchdog=watchdog,
            observer=observer,
        )

    @asynccontextmanager
    async def open(
        self,
        request: GenerateRequest,
        *,
        ledger: Ledger | None = None,
        trace: Trace | None = None,
        coalesce: float = 0,
        watchdog: Watchdog | None = None,
        record: RequestRecord | None = None,
        observer: Observer | None = None,
    ) -> AsyncGenerator[Stream[Out_co]]:
        """Run ``request`` in a task group of its own; leaving gives back all it holds.

        Iterate over the stream for lists of items, each what one wake has made ready.
        """
        stream = self.stream(
            request,
            ledger=ledger,
            trace=trace,
            coalesce=coalesce,
            watchdog=watchdog,
            record=record,
            observer=observer,
        )
        failure: BaseException | None = None
        async with create_task_group() as tasks:
            try:
                stream.start(tasks)
                yield stream
            except get_cancelled_exc_class():
                raise
            except BaseException as error:  # noqa: BLE001 - raised again below
                # Raised below, outside the task group, which would wrap it into a group: an error
                # of the caller's, and the GeneratorExit of a generator around this block.
                failure = error
            finally:
                stream.close()
        if failure is not None:
            raise failure

    def __iter__(self) -> Iterator[Link]:
        return iter(self._links)

    def __str__(self) -> str:
        return render(self._links)


_MESSAGES = frozenset(
    {"GenerateRequest", "Reserved", "Prefilled", "KVReady", "TokenBatch", "TextDelta", "bytes"}
)
"""Types of which it is certain that one cannot stand for another; stages may annotate others."""

_RANK = {Kind.STEP: 0, Kind.SOURCE: 1, Kind.TRANSFORM: 2, Kind.STAGE: 2}


def _encoder(scope: RequestScope) -> Transform[Any, Any]:
    if scope.encode is None:
        raise PipelineError("this pipeline's requests bring their encoder; this one has none")
    return scope.encode(scope)


def _parts(links: tuple[Link, ...]) -> tuple[tuple[Link, ...], tuple[Link, ...]]:
    """What runs before the mailbox, and behind it."""
    kinds = [link.kind for link in links]
    if Kind.SOURCE not in kinds:
        raise PipelineError(
            "this pipeline has no source: nothing would ever fill the mailbox; add one, such"
            " as Decode, behind the steps"
        )
    border = kinds.index(Kind.SOURCE) + 1
    return links[:border], links[border:]


def _check(links: tuple[Link, ...]) -> None:
    _check_order(links)
    _check_names(links)
    if _RANK[links[0].kind] == 2:
        raise PipelineError(
            f"{links[0].name} (a {links[0].kind.value}) cannot come first:"
            " something must fill the mailbox"
        )


def _check_order(links: tuple[Link, ...]) -> None:
    for left, right in pairwise(links):
        rank, next_rank = _RANK[left.kind], _RANK[right.kind]
        if rank > next_rank or (rank, next_rank) in ((1, 1), (0, 2)):
            raise PipelineError(
                f"{right.name} (a {right.kind.value}) cannot follow {left.name}"
                f" (a {left.kind.value}): first come the steps, then one source, then transforms"
                " and stages"
            )
        if {left.gives, right.takes} <= _MESSAGES and left.gives != right.takes:
            raise PipelineError(
                f"{right.name} takes {right.takes} and cannot follow {left.name}, which gives"
                f" {left.gives}; place it elsewhere"
            )


def _check_names(links: tuple[Link, ...]) -> None:
    names = [link.name for link in links]
    if len(set(names)) == len(names):
        return
    twice = next(name for name in names if names.count(name) > 1)
    raise PipelineError(f"two stages are called {twice!r}; give one of them a name of its own")
