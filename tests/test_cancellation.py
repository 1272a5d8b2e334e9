"""Every way to leave a request, at every place it can be stuck: all it held comes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from tilert_stream.abc import Receive, Send
from tilert_stream.errors import Cancelled
from tilert_stream.events import Finished, GenerateRequest, TokenBatch
from tilert_stream.lease import Ledger
from tilert_stream.pipeline import Pipeline
from tilert_stream.scope import RequestScope
from tilert_stream.testing import make_request

REQUEST = make_request()


class Hold:
    """Claims something, then stands still if it is told to."""

    def __init__(self, *, stuck: bool = False) -> None:
        self.stuck = stuck
        self.reached = anyio.Event()
        self.returned: list[str] = []

    async def call(self, item: GenerateRequest, scope: RequestScope) -> GenerateRequest:
        scope.lease.hold("slot", self.returned.append)
        self.reached.set()
        if self.stuck:
            await anyio.sleep_forever()
        return item


class Emit:
    """Puts ``count`` batches of one token at once; ends the stream if it is told to."""

    def __init__(self, count: int, *, ends: bool) -> None:
        self.count = count
        self.ends = ends

    async def produce(self, item: GenerateRequest, scope: RequestScope) -> TokenBatch | None:
        for number in range(self.count):
            scope.mailbox.put(TokenBatch((number,)))
        if self.ends:
            scope.mailbox.put(Finished("length"))
        return None


class Through:
    """Passes on what comes; stands still at item ``stuck_at``."""

    def __init__(self, stuck_at: int | None = None) -> None:
        self.stuck_at = stuck_at
        self.reached = anyio.Event()
        self.left: list[str] = []

    async def run(self, receive: Receive[TokenBatch], send: Send[TokenBatch]) -> None:
        try:
            async for batch in receive:
                if batch.ids[0] == self.stuck_at:
                    self.reached.set()
                    await anyio.sleep_forever()
                await send(batch)
            self.left.append("end")
        except anyio.get_cancelled_exc_class():
            self.left.append("cancelled")
            raise
        except Exception as error:
            self.left.append(type(error).__name__)
            raise


class Case:
    """A pipeline, the event at which its request is where it should be, and what it holds."""

    def __init__(self, *, stuck_in: str) -> None:
        self.hold = Hold(stuck=stuck_in == "step")
        self.stages = [Through(20 if stuck_in == "stage" else None), Through()]
        source = Emit(1000 if stuck_in == "back-pressure" else 30, ends=False)
        self.pipeline: Pipeline[Any] = Pipeline().then(self.hold).then(source)
        if stuck_in in ("stage", "back-pressure", "stage input"):
            for number, stage in enumerate(self.stages):
                self.pipeline = self.pipeline.then(stage, name=f"through{number}")
        self.reads = stuck_in != "back-pressure"
        self.stuck_in = stuck_in
        self.ledger = Ledger()

    async def read(self, stream: AsyncIterator[list[object]]) -> None:
        if not self.reads:
            await anyio.sleep_forever()
        async for _ in stream:
            pass

    async def request(self) -> None:
        async with self.pipeline.open(REQUEST, ledger=self.ledger) as stream:
            await self.read(stream)

    async def arrive(self) -> None:
        await self.hold.reached.wait()
        if self.stuck_in == "stage":
            await self.stages[0].reached.wait()
        await anyio.wait_all_tasks_blocked()

    async def fail(self, error: Exception) -> None:
        async with self.pipeline.open(REQUEST, ledger=self.ledger):
            await self.arrive_without_reader()
            raise error

    async def arrive_without_reader(self) -> None:
        await self.hold.reached.wait()
        await anyio.wait_all_tasks_blocked()

    def check(self) -> None:
        assert self.hold.returned == ["cancelled"]
        assert self.ledger.counts == {}
        if self.stuck_in in ("stage", "back-pressure", "stage input"):
            assert [stage.left for stage in self.stages] == [["cancelled"], ["cancelled"]]


@asynccontextmanager
async def nothing_logged(caplog: pytest.LogCaptureFixture) -> AsyncGenerator[None]:
    yield
    assert caplog.records == [], "a reader that leaves is nobody's fault"


PLACES = ["step", "mailbox", "stage", "stage input", "back-pressure"]


@pytest.mark.parametrize("place", PLACES)
async def test_a_scope_that_is_cancelled(place: str, caplog: pytest.LogCaptureFixture) -> None:
    case = Case(stuck_in=place)
    async with nothing_logged(caplog), anyio.create_task_group() as tasks:
        tasks.start_soon(case.request)
        await case.arrive()
        assert case.ledger.counts == {"lease": 1, "slot": 1}
        tasks.cancel_scope.cancel()
    case.check()


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    "anyio_backend",
    [("asyncio", {"use_uvloop": False}), ("asyncio", {"use_uvloop": True})],
    ids=["asyncio", "uvloop"],
)
async def test_a_task_that_is_cancelled(place: str, caplog: pytest.LogCaptureFixture) -> None:
    case = Case(stuck_in=place)
    async with nothing_logged(caplog):
        task = asyncio.create_task(case.request())
        await case.arrive()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    case.check()


@pytest.mark.parametrize("place", PLACES)
async def test_a_body_that_raises(place: str, caplog: pytest.LogCaptureFixture) -> None:
    case = Case(stuck_in=place)
    error = OSError("the client's socket is gone")
    async with nothing_logged(caplog):
        with pytest.raises(OSError, match="socket is gone") as caught:
            await case.fail(error)
        assert caught.value is error
    case.check()


@pytest.mark.parametrize("place", PLACES)
async def test_a_body_that_just_leaves(place: str, caplog: pytest.LogCaptureFixture) -> None:
    case = Case(stuck_in=place)
    async with nothing_logged(caplog):
        async with case.pipeline.open(REQUEST, ledger=case.ledger) as stream:
            await case.arrive_without_reader()
        assert stream.outcome is not None
        assert stream.outcome.reason == "cancelled"
        assert isinstance(stream.outcome.error, Cancelled)
    case.check()


async def test_left_before_it_has_begun() -> None:
    case = Case(stuck_in="stage")
    async with case.pipeline.open(REQUEST, ledger=case.ledger):
        pass
    assert case.hold.returned == ["cancelled"], "what came late went straight back"
    assert case.ledger.counts == {}
