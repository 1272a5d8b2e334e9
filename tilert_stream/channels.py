"""Tasks and bounded channels for the stages that await; nothing here runs where there are none.

::

    mailbox ─► pump [ transforms ] ─► channel ─► stage [ transforms ] ─► channel ─► … ─► reader

Data flows left to right. A channel holds what ``CAPACITY`` sends came to; a full one suspends its
sender, and so, stage by stage, whoever is on the left. What one send comes to stays together, and
``Finished`` with the items before it: a failure is seen before anything is written for it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, Generic, TypeVar, cast

from anyio import EndOfStream, WouldBlock, create_memory_object_stream, create_task_group
from anyio.lowlevel import checkpoint

from .errors import NotReady, StageError
from .events import Finished
from .fusion import Chain, stage_error

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

    from .events import TokenBatch
    from .fusion import Segment
    from .mailbox import Mailbox
    from .telemetry.record import Tally

__all__ = ("CAPACITY", "StageRunner", "interrupted")

CAPACITY: Final = 16

Out = TypeVar("Out")


def interrupted() -> Finished:
    """How a stream ends whose tasks are cancelled while its reader lives on."""
    return Finished.failed(NotReady("the service was stopped before the answer was complete"))


class _Receive:
    """A stage's input: the items of a channel, without the end."""

    def __init__(self, stream: MemoryObjectReceiveStream[list[object]]) -> None:
        self._stream = stream
        self._ready: deque[object] = deque()
        self._outcome: Finished | None = None

    @property
    def outcome(self) -> Finished | None:
        return self._outcome

    def __aiter__(self) -> AsyncIterator[object]:
        return self

    async def __anext__(self) -> object:
        if self._outcome is not None:
            raise StopAsyncIteration
        if self._ready:
            await checkpoint()
        else:
            self._ready += await self._stream.receive()
        item = self._ready.popleft()
        if isinstance(item, Finished):
            self._outcome = item
            raise StopAsyncIteration
        return item


class _Send:
    """A stage's output: through the transforms on its right, into the next channel."""

    def __init__(
        self, chain: Chain[object, object], stream: MemoryObjectSendStream[list[object]]
    ) -> None:
        self._chain = chain
        self._stream = stream

    async def __call__(self, item: object) -> None:
        ended = self._chain.outcome
        out = self._chain.run([item])
        if ended is None and self._chain.outcome is not None:
            out.append(self._chain.outcome)
        if out:
            await self._stream.send(out)
        else:
            await checkpoint()


class StageRunner(Generic[Out]):
    """The user's stages of one request, each in its task."""

    def __init__(
        self,
        mailbox: Mailbox[TokenBatch],
        head: Chain[object, object],
        segments: Sequence[Segment],
        tally: Tally | None = None,
    ) -> None:
        self._mailbox = mailbox
        self._tally = tally
        self._head = head
        self._segments = segments
        self.interruption = interrupted()
        """How the stream has ended if its tasks were cancelled."""
        self._channels = [
            create_memory_object_stream[list[object]](CAPACITY) for _ in range(len(segments) + 1)
        ]

    async def run(self, produce: Callable[[], Awaitable[None]]) -> None:
        """Run ``produce``, the pump and every stage until all have ended."""
        try:
            async with create_task_group() as tasks:
                tasks.start_soon(self._pump, name="pump")
                for index, segment in enumerate(self._segments):
                    tasks.start_soon(self._run_stage, index, segment, name=f"stage {segment.name}")
                await produce()
        finally:
            self._channels[-1][0].close()

    async def _pump(self) -> None:
        send = _Send(self._head, self._channels[0][0])
        while self._head.outcome is None:
            await self._mailbox.wait()
            arrived = self._mailbox.drain()
            if self._tally is not None:
                self._tally.note(arrived)
            for item in arrived:
                await send(item)

    async def _run_stage(self, index: int, segment: Segment) -> None:
        receive = _Receive(self._channels[index][1])
        send = _Send(segment.chain, self._channels[index + 1][0])
        try:
            await segment.stage.run(receive, send)
            ended = receive.outcome or Finished.failed(
                StageError(f"stage {segment.name!r} returned before its input had ended")
            )
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything; it ends its request
            ended = Finished.failed(stage_error(segment.name, error))
        if segment.chain.outcome is None:
            await send(ended)

    async def receive(self) -> tuple[list[Out], Finished | None]:
        """Wait for the last channel, and take all that lies in it."""
        stream = self._channels[-1][1]
        items: list[object] = []
        try:
            items += await stream.receive()
            while not isinstance(items[-1], Finished):
                items += stream.receive_nowait()
        except WouldBlock:
            return cast("list[Out]", items), None
        except EndOfStream:
            return cast("list[Out]", items), self.interruption
        return cast("list[Out]", items[:-1]), items[-1]

    def close(self) -> None:
        """Close every channel, once the tasks are cancelled. Sync, idempotent."""
        for send, receive in self._channels:
            send.close()
            receive.close()
