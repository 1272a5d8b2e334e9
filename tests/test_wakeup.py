"""Calls that threads bring into an asyncio loop."""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar, copy_context
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from tilert_stream.wakeup import wakeup_of

pytestmark = pytest.mark.parametrize(
    "anyio_backend",
    [
        pytest.param(("asyncio", {"use_uvloop": False}), id="asyncio"),
        pytest.param(("asyncio", {"use_uvloop": True}), id="uvloop"),
    ],
)
PLACE: ContextVar[str] = ContextVar("PLACE", default="nowhere")


async def test_every_call_is_made_once_and_each_threads_in_order(anyio_backend: object) -> None:
    loop = asyncio.get_running_loop()
    wakeup = wakeup_of(loop)
    each, threads = 3000, 4
    made: list[tuple[int, int]] = []
    callers: set[int] = set()
    all_there = anyio.Event()

    def note(call: Any) -> None:
        callers.add(threading.get_ident())
        made.append(call)
        if len(made) == each * threads:
            all_there.set()

    def produce(number: int) -> None:
        for index in range(each):
            assert wakeup.call(loop, note, (number, index), None)

    workers = [threading.Thread(target=produce, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    await all_there.wait()
    for worker in workers:
        worker.join()
    await anyio.lowlevel.checkpoint()

    assert callers == {threading.get_ident()}
    for number in range(threads):
        assert [index for of, index in made if of == number] == list(range(each))


async def test_a_call_made_by_a_call_waits_for_the_next_turn(anyio_backend: object) -> None:
    loop = asyncio.get_running_loop()
    wakeup = wakeup_of(loop)
    turns: list[str] = []
    over = anyio.Event()

    def again(rest: Any) -> None:
        turns.append("call")
        if rest:
            loop.call_soon(turns.append, "others")
            wakeup.call(loop, again, rest - 1, None)
        else:
            over.set()

    wakeup.call(loop, again, 2, None)
    await over.wait()
    assert turns == ["call", "others", "call", "others", "call"]


async def test_a_call_that_raises_keeps_no_other_from_being_made(anyio_backend: object) -> None:
    loop = asyncio.get_running_loop()
    wakeup = wakeup_of(loop)
    reports: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _loop, report: reports.append(report))
    over = anyio.Event()

    def fail(_: object) -> None:
        raise ZeroDivisionError

    wakeup.call(loop, fail, None, None)
    wakeup.call(loop, lambda _: over.set(), None, None)
    await over.wait()
    assert [type(report["exception"]) for report in reports] == [ZeroDivisionError]


async def test_a_call_runs_in_its_context(anyio_backend: object) -> None:
    loop = asyncio.get_running_loop()
    context = copy_context()
    context.run(PLACE.set, "there")
    seen: list[str] = []
    over = anyio.Event()

    def look(last: object) -> None:
        seen.append(PLACE.get())
        if last:
            over.set()

    wakeup_of(loop).call(loop, look, False, context)
    wakeup_of(loop).call(loop, look, True, copy_context())
    await over.wait()
    assert seen == ["there", "nowhere"]


async def test_a_loop_has_one(anyio_backend: object) -> None:
    loop = asyncio.get_running_loop()
    assert wakeup_of(loop) is wakeup_of(loop)


async def test_a_loop_that_has_ended_is_told(anyio_backend: object) -> None:
    other = asyncio.new_event_loop()
    wakeup = wakeup_of(other)
    assert wakeup is not wakeup_of(asyncio.get_running_loop())
    other.close()
    assert not wakeup.call(other, print, "never", None)
