"""Watches that ``Finished`` is a stage's last word; a running pipeline drops the rest silently.

In: a link to a stage. Out: one whose stages behave alike, and note what comes late.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from tilert_stream.abc import Transform
from tilert_stream.events import Finished

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tilert_stream.abc import Receive, Send, Stage
    from tilert_stream.link import Link
    from tilert_stream.scope import RequestScope

__all__ = ("watch_last_word",)


def watch_last_word(link: Link, late: list[object]) -> Link:
    """``link``, whose stages append to ``late`` what they yield or send after ``Finished``."""

    def make(scope: RequestScope) -> object:
        made: Any = link.make(scope)
        if isinstance(made, Transform):
            return _WatchedTransform(cast("Transform[object, object]", made), late)
        return _WatchedStage(made, late) if hasattr(made, "run") else made

    return replace(link, target=make)


class _WatchedTransform:
    def __init__(self, transform: Transform[object, object], late: list[object]) -> None:
        self._transform = transform
        self._late = late

    def feed(self, item: object) -> Iterable[object]:
        return self._whole(self._transform.feed(item))

    def finish(self, outcome: Finished) -> Iterable[object]:
        return self._whole(self._transform.finish(outcome))

    def _whole(self, results: Iterable[object]) -> Iterable[object]:
        # At once, not item by item: whoever reads stops at Finished.
        whole = list(results)
        for place, result in enumerate(whole):
            if isinstance(result, Finished):
                self._late += whole[place + 1 :]
                break
        return whole


class _WatchedStage:
    def __init__(self, stage: Stage[object, object], late: list[object]) -> None:
        self._stage = stage
        self._late = late

    async def run(self, receive: Receive[object], send: Send[object]) -> None:
        ended = False

        async def watched(item: object) -> None:
            nonlocal ended
            if ended:
                self._late.append(item)
            ended = ended or isinstance(item, Finished)
            await send(item)

        await self._stage.run(receive, watched)
