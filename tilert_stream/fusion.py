"""Neighbouring transforms become one call; a stage that awaits becomes a boundary between them.

In: what a wake drained from the mailbox, or one item of a stage. Out: what is to be written. No
task, no channel and no await in between: measured, a channel hop costs 100–300 times a fused call.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast

from .errors import PipelineError, StageError, TilertStreamError
from .events import Finished
from .link import Kind, kind_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .abc import Stage, Transform
    from .link import Link
    from .scope import RequestScope

__all__ = ("PASS_THROUGH", "Chain", "PassThrough", "Segment", "fuse", "stage_error")

In = TypeVar("In")
Out = TypeVar("Out")
Item = TypeVar("Item")

logger = logging.getLogger(__name__)


class Chain(Generic[In, Out]):
    """Transforms of one request, run as one.

    :param transforms: left to right, each with its stage's name (for errors).
    """

    __slots__ = ("_transforms", "outcome")

    def __init__(self, transforms: Sequence[tuple[str, Transform[object, object]]] = ()) -> None:
        self._transforms = list(transforms)
        self.outcome: Finished | None = None
        """How the stream ended; None while it runs."""

    def append(self, name: str, transform: Transform[object, object]) -> None:
        """Fuse one more on the right."""
        self._transforms.append((name, transform))

    def run(self, items: Iterable[In | Finished]) -> list[Out]:
        """Feed ``items`` through every transform; what follows ``Finished`` is dropped.

        A transform that raises ends the request with its error, and those on its right finish
        with it, so that an encoder still tells the client.
        """
        out: list[object] = []
        for item in items:
            if self.outcome is not None:
                break
            if isinstance(item, Finished):
                self.outcome = self._push([], item, out)
            else:
                self.outcome = self._push([item], None, out)
        return cast("list[Out]", out)

    def _push(
        self, items: list[object], ended: Finished | None, out: list[object]
    ) -> Finished | None:
        """Send ``items``, and then the end if there is one, from left to right."""
        for name, transform in self._transforms:
            produced: list[object] = []
            try:
                cut = None
                for item in items:
                    for result in transform.feed(item):
                        if isinstance(result, Finished):
                            cut = result
                            break
                        produced.append(result)
                    if cut is not None:
                        break
                if cut is not None:
                    ended = cut
                elif ended is not None:
                    ended = _finish(transform, ended, produced)
            except Exception as error:  # noqa: BLE001 - a plugin may raise anything; it ends its request
                ended = Finished.failed(stage_error(name, error))
            items = produced
            if not items and ended is None:
                return None
        out.extend(items)
        return ended


def _finish(
    transform: Transform[object, object], ended: Finished, produced: list[object]
) -> Finished:
    """Tell ``transform`` of the end; how the stream has ended behind it."""
    for result in transform.finish(ended):
        if isinstance(result, Finished):
            return result
        produced.append(result)
    return ended


def stage_error(name: str, error: Exception) -> TilertStreamError:
    """What a client may know of an exception in the stage ``name``; the rest goes to the log."""
    if isinstance(error, TilertStreamError):
        return error
    logger.error("stage %s failed", name, exc_info=error)
    failure = StageError(f"stage {name!r} failed")
    failure.__cause__ = error
    return failure


class PassThrough(Generic[Item]):
    """What a factory makes for a request that its stage has nothing to do for: fused away."""

    __slots__ = ()

    def feed(self, item: Item, /) -> Iterable[Item]:
        """The same item."""
        return (item,)

    def finish(self, _outcome: Finished, /) -> Iterable[Item]:
        """Nothing: nothing was held."""
        return ()


PASS_THROUGH: Final[PassThrough[Any]] = PassThrough()
"""The same for every request: it keeps nothing."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A stage that awaits, and the chain that runs in its task, on its right."""

    name: str
    stage: Stage[object, object]
    chain: Chain[object, object]


def fuse(links: Iterable[Link], scope: RequestScope) -> tuple[Chain[object, object], list[Segment]]:
    """Make one request's transforms and stages, and fuse what can be fused.

    :returns: the chain right behind the mailbox, and the segments on its right (most pipelines
        have none).
    :raises ~tilert_stream.errors.PipelineError: a factory made something else.
    :raises ~tilert_stream.errors.StageError: a factory raised.
    """
    head: Chain[object, object] = Chain()
    segments: list[Segment] = []
    chain = head
    for link in links:
        try:
            made = link.make(scope)
        except Exception as error:
            raise stage_error(link.name, error) from error
        if isinstance(made, PassThrough):
            continue
        kind = kind_of(made)
        if kind is Kind.TRANSFORM:
            chain.append(link.name, cast("Transform[object, object]", made))
        elif kind is Kind.STAGE:
            chain = Chain[object, object]()
            segments.append(Segment(link.name, cast("Stage[object, object]", made), chain))
        else:
            raise PipelineError(
                f"stage {link.name!r}: its factory made {made!r}, which has neither feed and"
                " finish nor run"
            )
    return head, segments
