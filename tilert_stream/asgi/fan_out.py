"""Several answers to one request: a stream for each in, one stream out.

Each is a request of its own to the engine, with a prefill and a slot of its own; where slots are
fewer they follow one another. Whatever comes is passed on at once; the end comes when all have
ended. The first that fails ends them all.
"""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, cast
from uuid import uuid4

import anyio
from anyio.lowlevel import checkpoint

from ..events import PromptUsage
from ..openai.chunks import ChunkTemplate
from ..openai.encoding import dumps
from ..openai.errors import error_body
from ..openai.objects import response
from ..stages.sse_details import DONE

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    from anyio.abc import ObjectReceiveStream, ObjectSendStream

    from ..errors import TilertStreamError
    from ..events import Finished, GenerateRequest
    from ..openai.envelope import Envelope
    from ..stages.gathered import Gathered
    from ..stream import Stream

__all__ = ("open_all", "requests_of")


def requests_of(
    request: GenerateRequest, envelope: Envelope
) -> list[tuple[GenerateRequest, Envelope]]:
    """A request for each answer; a seed counts up with a prompt's answers, as in vLLM."""
    prompts = [(request, envelope.echo), *envelope.others]
    count = envelope.choices // len(prompts)
    return [
        (_numbered(prompt, number), replace(envelope, index=place * count + number, echo=echo))
        for place, (prompt, echo) in enumerate(prompts)
        for number in range(count)
    ]


def _numbered(request: GenerateRequest, number: int) -> GenerateRequest:
    """Answer ``number`` to ``request``."""
    if not number:
        return request
    sampling = request.sampling
    if sampling.seed is not None:
        sampling = replace(sampling, seed=sampling.seed + number)
    return replace(request, id=uuid4().hex, sampling=sampling)


def open_all(
    opened: Sequence[AbstractAsyncContextManager[Stream[bytes]]],
    envelope: Envelope,
    gathered: Gathered,
    *,
    done_after_error: bool,
) -> AbstractAsyncContextManager[Stream[bytes]]:
    """All of ``opened`` as one stream.

    :param gathered: filled by their encoders.
    """

    @asynccontextmanager
    async def entered() -> AsyncGenerator[Stream[bytes]]:
        async with AsyncExitStack() as stack:
            streams = [await stack.enter_async_context(each) for each in opened]
            send, receive = anyio.create_memory_object_stream[_News](len(streams))
            failure: BaseException | None = None
            async with send, receive, anyio.create_task_group() as tasks:
                for each in streams:
                    tasks.start_soon(_pass_on, each, send)
                whole = _Whole(
                    streams,
                    receive,
                    lambda: _end(envelope, _usage(envelope, streams), gathered),
                    done_after_error=done_after_error and envelope.stream,
                    streamed=envelope.stream,
                )
                try:
                    # Whoever writes it looks at what a Stream and this have in common: the scope,
                    # the outcome, either way to the items, and its end.
                    yield cast("Stream[bytes]", whole)
                except anyio.get_cancelled_exc_class():
                    raise
                except BaseException as error:  # noqa: BLE001 - raised again below
                    # Raised below, outside the task group, which would wrap it into a group.
                    failure = error
                tasks.cancel_scope.cancel()
            if failure is not None:
                raise failure

    return entered()


_NOTHING: list[bytes] = []
_News = tuple[list[bytes], "Finished | None"]


async def _pass_on(stream: Stream[bytes], send: ObjectSendStream[_News]) -> None:
    told = False
    async for items in stream:
        told = stream.outcome is not None
        await send.send((items, stream.outcome))
    if not told:
        await send.send(([], stream.outcome))


class _Whole:
    """What one wake of any of the streams has made ready."""

    def __init__(
        self,
        streams: Sequence[Stream[bytes]],
        receive: ObjectReceiveStream[_News],
        end: Callable[[], bytes],
        *,
        streamed: bool,
        done_after_error: bool,
    ) -> None:
        self._streams = streams
        self.scope = streams[0].scope
        self.outcome: Finished | None = None
        self._running = len(streams)
        self._receive = receive
        self._end = end
        self._streamed = streamed
        self._done_after_error = done_after_error

    def close(self) -> None:
        """End all that still run. Sync, idempotent."""
        for stream in self._streams:
            stream.close()

    def __aiter__(self) -> _Whole:
        return self

    async def __anext__(self) -> list[bytes]:
        """As ``Stream``'s: a failed request ends the iteration; look at ``outcome``."""
        while self.outcome is None:
            items, ended = await self._receive.receive()
            if ended is not None:
                self._running -= 1
                if ended.error is not None:
                    return self._failed(ended, ended.error)
                if not self._running:
                    self.outcome = ended
                    items.append(self._end())
            if items:
                return items
        raise StopAsyncIteration

    async def forward(
        self,
        sink: Callable[[list[bytes]], bool],
        finish: Callable[[list[bytes]], bool] | None = None,
    ) -> list[bytes]:
        """As ``Stream``'s: each wake to ``sink``, the last items to ``finish``."""
        if self.outcome is not None:
            await checkpoint()
        while self.outcome is None:
            items = await anext(self, _NOTHING)
            if self.outcome is not None:
                return [] if finish is not None and finish(items) else items
            if not sink(items):
                break
        return []

    def _failed(self, ended: Finished, error: TilertStreamError) -> list[bytes]:
        self.outcome = ended
        if not self._streamed or ended.reason == "cancelled":
            raise StopAsyncIteration
        event = b"data: " + error_body(error) + b"\n\n"
        return [event + DONE if self._done_after_error else event]


def _usage(envelope: Envelope, streams: Sequence[Stream[bytes]]) -> PromptUsage:
    """Each prompt once."""
    count = envelope.choices // (1 + len(envelope.others))
    usages = [stream.scope.usage for stream in streams[::count]]
    cached = [usage.cached_tokens for usage in usages if usage.cached_tokens is not None]
    return PromptUsage(
        sum(usage.prompt_tokens for usage in usages), sum(cached) if cached else None
    )


def _end(envelope: Envelope, prompt: PromptUsage, gathered: Gathered) -> bytes:
    completion, reasoning = gathered.completion_tokens, gathered.reasoning_tokens
    if not envelope.stream:
        choices = [gathered.choices[index] for index in sorted(gathered.choices)]
        whole = response(envelope, choices, prompt, completion, reasoning)
        return dumps(gathered.top | whole)
    if not envelope.include_usage:
        return DONE
    usage = ChunkTemplate(envelope).usage(prompt, completion, reasoning)
    return b"data: " + usage + b"\n\n" + DONE
