"""A stream whose items go on as they come, by plain calls out of the event loop.

In: the wakes of a mailbox. Out: calls of a sink. The task that asked for it sleeps until the end:
to step it, through every coroutine between the server and the mailbox, would cost a token more than
its text does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar, cast

from .parking import make_parking

if TYPE_CHECKING:
    from collections.abc import Callable

    from .stream import Stream

__all__ = ("Forwarding",)

Out = TypeVar("Out")


class Forwarding(Generic[Out]):
    """``Stream.forward`` of one stream, once."""

    __slots__ = ("_failure", "_finish", "_last", "_over", "_parking", "_sink", "_stream")

    def __init__(
        self,
        stream: Stream[Out],
        sink: Callable[[list[Out]], bool],
        finish: Callable[[list[Out]], bool] | None,
    ) -> None:
        self._stream = stream
        self._sink = sink
        self._finish = finish
        self._parking = make_parking()
        self._over = False
        self._last: list[Out] = []
        self._failure: BaseException | None = None

    async def run(self) -> list[Out]:
        """Wait for the end, or for ``sink`` to say False."""
        mailbox = self._stream.scope.mailbox
        mailbox.call_when_ready(_step, self)
        try:
            while not self._over:
                await self._parking.park()
        finally:
            mailbox.call_off()
            self._over = True
        if self._failure is not None:
            raise self._failure
        return self._last

    def step(self) -> None:
        """Take what one wake has made ready."""
        if self._over:
            # Cancelled when this was on its way already: what is there is for others to take.
            return
        stream = self._stream
        finished = False
        try:
            items = stream.take()
            if stream.outcome is not None:
                finished = self._finish is not None and self._finish(items)
                self._last = [] if finished else items
            elif not items or self._sink(items):
                stream.scope.mailbox.call_when_ready(_step, self)
                return
        except BaseException as error:  # noqa: BLE001 - raised in the task
            self._failure = error
        self._over = True
        if finished:
            # The reader has its end: what else is ready in this turn goes before our cleaning up.
            self._parking.unpark()
        else:
            self._parking.unpark_at_once()


def _step(forwarding: object) -> None:
    cast("Forwarding[object]", forwarding).step()
