"""Edges of the core: generators around a request, silent sends, double frees, odd plugins."""

from __future__ import annotations

import importlib
import sys
import threading
from contextlib import aclosing
from typing import TYPE_CHECKING

import anyio
import pytest

from tilert_stream.abc import Receive, Send
from tilert_stream.cluster.admission import Admission
from tilert_stream.errors import PipelineError, StageLoadError
from tilert_stream.events import Finished, GenerateRequest, TokenBatch
from tilert_stream.lease import Ledger
from tilert_stream.pipeline import Pipeline
from tilert_stream.registry import load
from tilert_stream.testing import make_request

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable
    from pathlib import Path

    from tilert_stream.scope import RequestScope


class Emit:
    """Puts one token and no end."""

    async def produce(self, item: GenerateRequest, scope: RequestScope) -> TokenBatch | None:
        scope.mailbox.put(TokenBatch((1,)))
        return None


class Restless:
    """Ends the stream, and goes on sending for ever."""

    async def run(self, receive: Receive[TokenBatch], send: Send[TokenBatch]) -> None:
        async for batch in receive:
            await send(Finished("stop"))
            while True:
                await send(batch)


class Swallow:
    def __init__(self, _scope: RequestScope) -> None: ...

    def feed(self, _item: TokenBatch) -> Iterable[TokenBatch]:
        return ()

    def finish(self, _outcome: Finished) -> Iterable[TokenBatch]:
        return ()


class NoScope:
    def feed(self, item: TokenBatch) -> Iterable[TokenBatch]:
        return (item,)

    def finish(self, _outcome: Finished) -> Iterable[TokenBatch]:
        return ()


async def test_a_generator_around_a_request_can_be_closed() -> None:
    ledger = Ledger()
    pipeline = Pipeline().then(Emit())

    async def generate() -> AsyncGenerator[TokenBatch]:
        async with pipeline.open(make_request(), ledger=ledger) as stream:
            async for items in stream:
                for item in items:
                    yield item

    async with aclosing(generate()) as tokens:
        async for item in tokens:
            assert item.ids == (1,)
            break
    assert ledger.counts == {}


async def test_send_lets_others_run_though_nothing_comes_of_it() -> None:
    async with Pipeline().then(Emit()).then(Restless()).open(make_request()) as stream:
        assert [items async for items in stream] == []
        assert stream.outcome == Finished("stop")


async def test_a_stage_before_a_transform_that_swallows_all_can_be_cancelled() -> None:
    class Endless:
        async def run(self, receive: Receive[TokenBatch], send: Send[TokenBatch]) -> None:
            async for batch in receive:
                begun.set()
                while True:
                    await send(batch)

    begun = anyio.Event()
    async with Pipeline().then(Emit()).then(Endless()).then(Swallow).open(make_request()):
        await begun.wait()


def test_a_class_that_takes_no_scope_is_refused_when_it_is_linked() -> None:
    with pytest.raises(PipelineError, match=r"no_scope: .*NoScope.* scope"):
        Pipeline().then(Emit()).insert(NoScope, where="after", anchor="emit")


async def test_a_ticket_freed_by_two_threads_gives_one_slot() -> None:
    admission = Admission([0])
    for _ in range(50):
        ticket = await admission.acquire()
        barrier = threading.Barrier(4)

        def free() -> None:
            barrier.wait()  # noqa: B023 - joined before the next one is made
            ticket.free()  # noqa: B023

        threads = [threading.Thread(target=free) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert admission.statistics().busy == 0


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    importlib.invalidate_caches()
    return tmp_path


def test_a_lazy_module_that_cannot_load_its_attribute_shows_its_own_error(plugins: Path) -> None:
    (plugins / "lazy_plugin_of_the_test.py").write_text(
        "def __getattr__(name):\n    raise ImportError('needs the package moderation')\n"
    )
    try:
        with pytest.raises(StageLoadError, match="needs the package moderation"):
            load("lazy_plugin_of_the_test:Moderate")
    finally:
        sys.modules.pop("lazy_plugin_of_the_test", None)


def test_an_entry_point_may_name_an_extra(plugins: Path) -> None:
    (plugins / "extra_plugin_of_the_test.py").write_text("STAGE = 'the stage'\n")
    info = plugins / "extra_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: extra-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[tilert_stream.stages]\nextra = extra_plugin_of_the_test:STAGE [gpu]\n"
    )
    try:
        assert load("extra") == "the stage"
    finally:
        sys.modules.pop("extra_plugin_of_the_test", None)
