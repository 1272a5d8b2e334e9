"""One request of a service while a block lasts: a stream that is started on entry, closed on exit.

Its producer is a task of the service's own group, since a group for each request would cost its
first token more than the transforms do; or it needs none, where its reader only forwards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from anyio.abc import TaskGroup

    from .stream import Stream

__all__ = ("Opened",)

Out = TypeVar("Out")


class Opened(Generic[Out]):
    """An asynchronous context manager; leaving it gives back all that the request holds.

    :param make: makes the stream.
    :param tasks: where its producer runs.
    :param streams: those whose readers may outlive ``tasks``.
    """

    __slots__ = ("_make", "_stream", "_streams", "_tasks", "forwarded")

    def __init__(
        self, make: Callable[[], Stream[Out]], tasks: TaskGroup, streams: set[Stream[Out]]
    ) -> None:
        self._make = make
        self._tasks = tasks
        self._streams = streams
        self._stream: Stream[Out] | None = None
        self.forwarded = False
        """The stream will be read by ``forward`` alone, as soon as it is there."""

    async def __aenter__(self) -> Stream[Out]:
        """Never a checkpoint.

        :raises ~tilert_stream.errors.StageError: a factory of the pipeline raised.
        """
        stream = self._make()
        stream.start(self._tasks, forwarded=self.forwarded)
        self._stream = stream
        self._streams.add(stream)
        return stream

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """A checkpoint only where the producer still works: it has ended when this returns."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()
            await stream.wait_produced()
            self._streams.discard(stream)
