from __future__ import annotations

import anyio
import pytest
from trio.testing import MockClock

from tilert_stream.cluster.queue import Queue
from tilert_stream.errors import Busy

AUTOJUMP: list[tuple[str, dict[str, object]]] = [
    ("trio", {"clock": MockClock(autojump_threshold=0)})
]


class Line:
    """Requests in a queue, by name; the head asks, and is given what ``give`` says."""

    tasks: anyio.abc.TaskGroup

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.asking: list[str] = []
        self.served: list[str] = []
        self.refused: dict[str, Busy] = {}
        self._slots: dict[str, anyio.Event] = {}
        self._scopes: dict[str, anyio.CancelScope] = {}

    async def join(self, *names: str) -> None:
        for name in names:
            self.tasks.start_soon(self._wait, name)
            await anyio.wait_all_tasks_blocked()

    async def _wait(self, name: str) -> None:
        self._slots[name] = anyio.Event()

        async def ask() -> None:
            self.asking.append(name)
            await self._slots[name].wait()

        with anyio.CancelScope() as self._scopes[name]:
            try:
                await self.queue.wait(ask)
                self.served.append(name)
            except Busy as error:
                self.refused[name] = error

    async def give(self, name: str) -> None:
        self._slots[name].set()
        await anyio.wait_all_tasks_blocked()

    async def leave(self, name: str) -> None:
        self._scopes[name].cancel()
        await anyio.wait_all_tasks_blocked()


async def test_dis_14_only_the_head_asks_and_who_leaves_neither_takes_nor_blocks() -> None:
    line = Line(Queue())
    async with anyio.create_task_group() as line.tasks:
        await line.join(*"abcde")
        assert line.asking == ["a"]
        await line.leave("b")  # in the middle
        await line.give("a")
        assert line.asking == ["a", "c"]
        await line.leave("c")  # at the head
        assert line.asking == ["a", "c", "d"]
        assert line.queue.waiting == 2
        await line.give("d")
        await line.give("e")
    assert line.served == ["a", "d", "e"]
    assert line.queue.waiting == 0


async def test_a_full_line_refuses_at_once_and_a_place_that_was_left_is_free() -> None:
    line = Line(Queue(max_waiting=2))
    async with anyio.create_task_group() as line.tasks:
        await line.join(*"abc")
        assert list(line.refused) == ["c"]
        assert "2 requests already wait for a decode slot (max_queue is 2)" in str(
            line.refused["c"]
        )
        assert line.refused["c"].retry_after == 2
        await line.leave("a")
        await line.join("d")
        assert list(line.refused) == ["c"]
        line.tasks.cancel_scope.cancel()
    assert line.queue.waiting == 0


async def test_an_error_of_the_head_is_its_own() -> None:
    queue = Queue()

    async def fail() -> None:
        await anyio.lowlevel.checkpoint()
        raise ValueError("asked in vain")

    with pytest.raises(ValueError, match="in vain"):
        await queue.wait(fail)
    assert queue.waiting == 0


@pytest.mark.parametrize("anyio_backend", AUTOJUMP, ids=["autojump"])
async def test_the_time_in_line_and_at_its_head_is_one() -> None:
    line = Line(Queue(timeout=30))
    start = anyio.current_time()
    async with anyio.create_task_group() as line.tasks:
        line.tasks.start_soon(line.join, "a")
        await anyio.sleep(20)
        line.tasks.start_soon(line.join, "b")
        await anyio.sleep(15)
        assert list(line.refused) == ["a"]
        assert line.asking == ["a", "b"], "b waits at the head from second 30 on"
    assert anyio.current_time() - start == 50, "and its own 30 s are over"
    assert list(line.refused) == ["a", "b"]
    assert "within 30 s" in str(line.refused["b"])
    assert line.refused["b"].retry_after == 1
