"""Work that outlives its request, and its bounds."""

from __future__ import annotations

import anyio
import pytest

from tilert_stream.cluster.janitor import Janitor


class Log:
    def __init__(self) -> None:
        self.done: list[str] = []
        self.abandoned: list[str] = []
        self.go = anyio.Event()

    async def quick(self) -> None:
        await anyio.lowlevel.checkpoint()
        self.done.append("quick")

    async def slow(self) -> None:
        await self.go.wait()
        self.done.append("slow")

    async def fail(self) -> None:
        raise OSError("no such node")

    def abandon(self) -> None:
        self.abandoned.append("x")


async def test_what_is_there_is_done_before_leaving() -> None:
    log = Log()
    async with Janitor(within=60, farewell=60) as janitor:
        janitor.submit("work", log.quick, log.abandon)
        assert janitor.busy == 1
        assert log.done == [], "nobody has waited"
    assert (log.done, log.abandoned, janitor.busy) == (["quick"], [], 0)


async def test_leaving_waits_no_longer_than_its_farewell() -> None:
    log = Log()
    async with Janitor(farewell=0.01) as janitor:
        for _ in range(3):
            janitor.submit("work", log.slow, log.abandon)
    assert (log.done, log.abandoned, janitor.busy) == ([], ["x"] * 3, 0)


async def test_each_has_its_time() -> None:
    log = Log()
    async with Janitor(within=0.01, farewell=60) as janitor:
        janitor.submit("work", log.slow, log.abandon)
    assert log.abandoned == ["x"]
    assert janitor.abandoned_total == 1


async def test_there_is_room_for_so_many() -> None:
    log = Log()
    async with Janitor(capacity=1, within=60, farewell=60) as janitor:
        janitor.submit("one", log.slow, log.abandon)
        janitor.submit("two", log.slow, log.abandon)
        assert log.abandoned == ["x"], "at once, for nobody may wait"
        log.go.set()
    assert log.done == ["slow"]


async def test_a_failure_is_nobodys(caplog: pytest.LogCaptureFixture) -> None:
    log = Log()
    with caplog.at_level("INFO"):
        async with Janitor() as janitor:
            janitor.submit("telling the node", log.fail, log.abandon)
    assert log.abandoned == ["x"]
    assert "telling the node: no such node" in caplog.text


async def test_without_a_janitor_nothing_stays_behind() -> None:
    log = Log()
    janitor = Janitor()
    janitor.submit("work", log.quick, log.abandon)
    assert log.abandoned == ["x"]


async def test_cancelled_with_work_in_it() -> None:
    log = Log()
    janitor = Janitor()
    async with anyio.create_task_group() as tasks, janitor:
        janitor.submit("begun", log.slow, log.abandon)
        await anyio.wait_all_tasks_blocked()
        janitor.submit("not begun", log.slow, log.abandon)
        tasks.cancel_scope.cancel()
    assert (log.abandoned, janitor.busy) == (["x", "x"], 0)


async def test_an_error_inside_leaves_as_it_is() -> None:
    log = Log()

    async def fail() -> None:
        async with Janitor() as janitor:
            janitor.submit("work", log.slow, log.abandon)
            await log.fail()

    with pytest.raises(OSError, match="no such node"):
        await fail()
    assert log.abandoned == ["x"]
