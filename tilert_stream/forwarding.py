"""A stream whose items go on as they come, by plain calls out of the event loop.

In: the wakes of a mailbox. Out: calls of a sink. The task that asked for it sleeps until the end:
to step it, through every coroutine between the server and the mailbox, would cost a token more than
its text does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast

from anyio.lowlevel import checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable

    from .stream import Stream

__all__ = ("Forwarding",)

Out = TypeVar("Out")


class Forwarding(Generic[Out]):
    """``Stream.forward`` of one stream, once."""

    __slots__ = (
        "_failure",
        "_finish",
        "_last",
        "_over",
        "_parking",
        "_producing",
        "_sink",
        "_stream",
    )

    def __init__(
        self,
        stream: Stream[Out],
        sink: Callable[[list[Out]], bool],
        finish: Callable[[list[Out]], bool] | None,
    ) -> None:
        self._stream = stream
        self._sink = sink
        self._finish = finish
        self._parking = stream.scope.mailbox.another_parking()
        self._over = False
        self._producing = False
        """The task that waits for this produces the stream."""
        self._last: list[Out] = []
        self._failure: BaseException | None = None

    async def run(self) -> list[Out]:
        """Wait for the end, or for ``sink`` to say False."""
        mailbox = self._stream.scope.mailbox
        mailbox.call_when_ready(_STEP, self)
        try:
            self._producing = True
            await self._stream.work_for_reader()
            self._producing = False
            if self._over:
                await checkpoint()
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
                stream.scope.mailbox.call_when_ready(_STEP, self)
                return
        except BaseException as error:  # noqa: BLE001 - raised in the task
            self._failure = error
        self._over = True
        if self._producing:
            if stream.outcome is not None or self._failure is not None:
                # A stop string may match while the KV cache is still on its way. Not at once: this
                # may be the producer's own call, its last, and then there is nothing to stop.
                self._parking.park_call(_stop, stream)
                self._parking.unpark()
        elif finished:
            # The reader has its end: what else is ready in this turn goes before our cleaning up.
            self._parking.unpark()
        else:
            self._parking.unpark_at_once()


def _stop(stream: object) -> None:
    cast("Stream[object]", stream).stop_producing()


_STEP: Final = cast("Callable[[object], None]", cast("Any", Forwarding).step)
