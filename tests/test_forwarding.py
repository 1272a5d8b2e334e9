"""A stream that goes on by plain calls of the event loop, without a step of the reader's task."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextvars import ContextVar

import anyio
import anyio.lowlevel
import pytest

from tests.small_stages import REQUEST
from tilert_stream.abc import Receive, Send
from tilert_stream.events import Finished, GenerateRequest, TokenBatch
from tilert_stream.pipeline import Pipeline
from tilert_stream.scope import RequestScope
from tilert_stream.stream import Stream

END = Finished("length")
PLACE: ContextVar[str] = ContextVar("PLACE", default="nowhere")


class Silent:
    """A source that leaves it to the test what comes when."""

    async def produce(self, item: GenerateRequest, scope: RequestScope) -> TokenBatch | None:
        await anyio.sleep_forever()
        return None


class Name:
    """A token becomes its number and the place in which it is named."""

    def __init__(self, _scope: RequestScope) -> None: ...

    def feed(self, item: TokenBatch) -> Iterable[str]:
        return [f"{token} {PLACE.get()}" for token in item.ids]

    def finish(self, outcome: Finished) -> Iterable[str]:
        yield f"end: {outcome.reason}"


class Awaiting:
    """A stage that awaits: forwarding has a task then."""

    async def run(self, receive: Receive[str], send: Send[str]) -> None:
        async for item in receive:
            await send(item)


PIPELINE = Pipeline().then(Silent()).then(Name)


def put(stream: Stream[str], *ids: int) -> None:
    assert stream.scope.mailbox.put(*(TokenBatch((number,)) for number in ids))


class Sink:
    """Keeps what comes, and how many tasks' steps were taken meanwhile."""

    def __init__(self, *, until: Callable[[list[str]], bool] = lambda _: False) -> None:
        self.wakes: list[list[str]] = []
        self.until = until

    def __call__(self, items: list[str]) -> bool:
        self.wakes.append(items)
        return not self.until(items)


async def test_each_wake_goes_to_the_sink_and_the_last_to_the_task() -> None:
    sink = Sink()
    last: list[str] = []
    async with PIPELINE.open(REQUEST) as stream, anyio.create_task_group() as tasks:

        async def read() -> None:
            last.extend(await stream.forward(sink))

        tasks.start_soon(read)
        await anyio.wait_all_tasks_blocked()
        put(stream, 1, 2)
        await anyio.wait_all_tasks_blocked()
        put(stream, 3)
        await anyio.wait_all_tasks_blocked()
        assert sink.wakes == [["1 nowhere", "2 nowhere"], ["3 nowhere"]]
        assert stream.outcome is None
        assert stream.scope.mailbox.put(TokenBatch((4,)), END)
    assert last == ["4 nowhere", "end: length"]
    assert len(sink.wakes) == 2
    assert stream.outcome == END


@pytest.mark.parametrize("takes", [True, False])
async def test_whoever_finishes_may_take_the_last(*, takes: bool) -> None:
    sink, finish = Sink(), Sink(until=lambda _: not takes)
    last: list[str] = []
    async with PIPELINE.open(REQUEST) as stream, anyio.create_task_group() as tasks:

        async def read() -> None:
            last.extend(await stream.forward(sink, finish))

        tasks.start_soon(read)
        await anyio.wait_all_tasks_blocked()
        put(stream, 1)
        await anyio.wait_all_tasks_blocked()
        stream.scope.mailbox.put(TokenBatch((2,)), END)
    assert sink.wakes == [["1 nowhere"]]
    assert finish.wakes == [["2 nowhere", "end: length"]]
    assert last == ([] if takes else ["2 nowhere", "end: length"])
    assert stream.outcome == END


async def test_what_finishing_raises_raises_in_the_task() -> None:
    def refuse(_items: list[str]) -> bool:
        raise BrokenPipeError("gone")

    async with PIPELINE.open(REQUEST) as stream:
        stream.scope.mailbox.put(END)
        with pytest.raises(BrokenPipeError, match="gone"):
            await stream.forward(Sink(), refuse)


async def test_what_is_there_before_is_forwarded_too() -> None:
    sink = Sink(until=lambda _: True)
    async with PIPELINE.open(REQUEST) as stream:
        put(stream, 1)
        assert await stream.forward(sink) == []
        assert sink.wakes == [["1 nowhere"]]
        stream.scope.mailbox.put(END)
        assert await stream.forward(sink) == ["end: length"]


async def test_a_sink_that_says_no_loses_nothing() -> None:
    sink = Sink(until=lambda items: "2 nowhere" in items)
    async with PIPELINE.open(REQUEST) as stream:
        put(stream, 1, 2)
        assert await stream.forward(sink) == []
        put(stream, 3)
        put(stream, 4)
        assert sink.wakes == [["1 nowhere", "2 nowhere"]], "nothing comes while nobody forwards"
        stream.scope.mailbox.put(END)
        assert await stream.forward(sink) == ["3 nowhere", "4 nowhere", "end: length"]


async def test_a_sink_that_raises_raises_in_the_task() -> None:
    def refuse(_items: list[str]) -> bool:
        raise BrokenPipeError("gone")

    async with PIPELINE.open(REQUEST) as stream:
        put(stream, 1)
        with pytest.raises(BrokenPipeError, match="gone"):
            await stream.forward(refuse)
        put(stream, 2)
        assert await anext(stream) == ["2 nowhere"]


async def test_cancelled_it_leaves_what_comes_later_alone() -> None:
    sink = Sink()
    async with PIPELINE.open(REQUEST) as stream:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stream.forward, sink)
            await anyio.wait_all_tasks_blocked()
            put(stream, 1)
            tasks.cancel_scope.cancel()
            # Cancelled and woken in one turn of the loop: whichever comes first, 1 comes once.
        put(stream, 2)
        rest: list[str] = []
        while "2 nowhere" not in rest:
            rest += await anext(stream)
        forwarded = [item for wake in sink.wakes for item in wake]
        assert forwarded + rest == ["1 nowhere", "2 nowhere"]


async def test_cancelled_while_a_wake_is_on_its_way() -> None:
    """What it brings is read once, by whoever comes first."""
    sink = Sink()
    async with PIPELINE.open(REQUEST) as stream:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stream.forward, sink)
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
            put(stream, 1)
        await anyio.wait_all_tasks_blocked()
        put(stream, 2)
        rest: list[str] = []
        while "2 nowhere" not in rest:
            rest += await anext(stream)
    assert [item for wake in sink.wakes for item in wake] + rest == ["1 nowhere", "2 nowhere"]


async def test_cancelled_and_closed_nothing_runs_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last wake was on its way to a stream that is closed when it comes."""
    async with PIPELINE.open(REQUEST) as stream:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stream.forward, Sink())
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
            assert stream.scope.mailbox.put(TokenBatch((1,)), END)
            stream.close()
        await anyio.wait_all_tasks_blocked()
        taken: list[object] = []

        def again(late: object) -> list[str]:
            taken.append(late)
            return []

        monkeypatch.setattr(Stream, "take", again)
        for _ in range(10):
            await anyio.lowlevel.checkpoint()
    assert taken == []


async def test_it_runs_in_the_context_of_who_asked() -> None:
    sink = Sink(until=lambda _: True)

    async def read(stream: Stream[str]) -> None:
        PLACE.set("here")
        await stream.forward(sink)

    async with PIPELINE.open(REQUEST) as stream, anyio.create_task_group() as tasks:
        tasks.start_soon(read, stream)
        await anyio.wait_all_tasks_blocked()
        put(stream, 1)
    assert sink.wakes == [["1 here"]]


async def test_it_fails_like_a_stream_that_is_read() -> None:
    async with PIPELINE.open(REQUEST) as stream:
        stream.close()
        assert await stream.forward(Sink()) == []
    assert stream.outcome is not None
    assert stream.outcome.reason == "cancelled"


@pytest.mark.parametrize("coalesce", [0, 0.001])
async def test_with_a_stage_that_awaits_it_is_the_same(coalesce: float) -> None:
    sink = Sink(until=lambda items: "2 nowhere" in items)
    pipeline = PIPELINE if coalesce else PIPELINE.then(Awaiting())
    async with pipeline.open(REQUEST, coalesce=coalesce) as stream:
        put(stream, 1, 2)
        assert await stream.forward(sink) == []
        assert [item for wake in sink.wakes for item in wake] == ["1 nowhere", "2 nowhere"]
        stream.scope.mailbox.put(TokenBatch((3,)), END)
        last = await stream.forward(sink)
        seen = [item for wake in sink.wakes for item in wake] + last
    assert seen[:3] == ["1 nowhere", "2 nowhere", "3 nowhere"]
    assert stream.outcome == END
