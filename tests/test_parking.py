from __future__ import annotations

import asyncio
import inspect
import math
import threading
from collections.abc import Callable

import anyio
import pytest
import sniffio
import trio
from anyio.lowlevel import current_token

from tilert_stream.parking import Parking, make_parking


def in_a_thread(function: Callable[[], object]) -> None:
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


async def parked(parking: Parking, woken: list[str], name: str) -> None:
    await parking.park()
    woken.append(name)


@pytest.mark.parametrize("from_thread", [False, True])
async def test_unpark_wakes_the_parked_task(*, from_thread: bool) -> None:
    parking = make_parking()
    woken: list[str] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(parked, parking, woken, "reader")
        await anyio.wait_all_tasks_blocked()
        assert woken == []
        if from_thread:
            in_a_thread(parking.unpark)
        else:
            assert parking.unpark()
    assert woken == ["reader"]


async def test_a_woken_task_runs_on_the_event_loop_alone() -> None:
    parking = make_parking()
    files: list[str] = []

    async def reader() -> None:
        await parking.park()
        frame = inspect.currentframe()
        while frame is not None:
            files.append(frame.f_code.co_filename)
            frame = frame.f_back

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(reader)
        await anyio.wait_all_tasks_blocked()
        in_a_thread(parking.unpark)
    assert files
    assert inspect.getsourcefile(make_parking) not in files


async def test_a_cancelled_task_is_told_why() -> None:
    parking = make_parking()
    told: list[bool] = []

    async def reader() -> None:
        try:
            await parking.park()
        except anyio.get_cancelled_exc_class():
            told.append(anyio.current_effective_deadline() == -math.inf)
            raise

    with anyio.move_on_after(0) as scope:
        await reader()
    assert told == [True]
    assert scope.cancelled_caught


async def test_an_unpark_of_nobody_is_lost_and_harms_nobody() -> None:
    parking = make_parking()
    woken: list[str] = []
    assert parking.unpark()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(parked, parking, woken, "reader")
        await anyio.wait_all_tasks_blocked()
        assert woken == []
        assert parking.unpark()
        assert parking.unpark(), "a second wake before the task has run"
    assert woken == ["reader"]


async def test_a_cancelled_task_leaves_the_place_to_the_next() -> None:
    parking = make_parking()
    woken: list[str] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(parked, parking, woken, "first")
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert parking.unpark()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(parked, parking, woken, "second")
        await anyio.wait_all_tasks_blocked()
        assert woken == []
        in_a_thread(parking.unpark)
    assert woken == ["second"]


async def test_a_wake_and_a_cancellation_in_one_moment() -> None:
    parking = make_parking()
    woken: list[str] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(parked, parking, woken, "reader")
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
        assert parking.unpark()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(parked, parking, woken, "next")
        await anyio.wait_all_tasks_blocked()
        assert parking.unpark()
    assert woken[-1] == "next"


def test_a_closed_asyncio_loop_is_told_from_every_thread() -> None:
    loop = asyncio.new_event_loop()

    async def make() -> Parking:
        return make_parking()

    parking = loop.run_until_complete(make())
    loop.close()
    results = [parking.unpark()]
    in_a_thread(lambda: results.append(parking.unpark()))
    assert results == [False, False]


def test_an_ended_trio_run_is_told_from_other_threads() -> None:
    async def make() -> Parking:
        return make_parking()

    parking = trio.run(make)
    results: list[bool] = []
    in_a_thread(lambda: results.append(parking.unpark()))
    assert results == [False]


def test_it_needs_an_event_loop() -> None:
    with pytest.raises(anyio.NoEventLoopError):
        make_parking()


@pytest.mark.parametrize("caller", ["task", "thread", "loop"])
async def test_unpark_at_once_wakes_whoever_calls(caller: str) -> None:
    """At once where the event loop calls, as soon as can be elsewhere."""
    parking = make_parking()
    woken: list[str] = []
    seen: list[list[str]] = []

    def unpark() -> None:
        assert parking.unpark_at_once()
        seen.append(woken.copy())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(parked, parking, woken, "reader")
        await anyio.wait_all_tasks_blocked()
        if caller == "task":
            unpark()
        elif caller == "thread":
            in_a_thread(unpark)
        elif isinstance(loop := current_token().native_token, asyncio.AbstractEventLoop):
            loop.call_soon(unpark)
        else:
            trio.lowlevel.current_trio_token().run_sync_soon(unpark)
    assert woken == ["reader"]
    at_once = caller == "loop" and sniffio.current_async_library() == "asyncio"
    assert seen == [["reader"] if at_once else []]


@pytest.mark.parametrize("caller", ["task", "thread", "loop"])
async def test_a_call_that_waits_runs_at_once_on_the_loops_own_thread(caller: str) -> None:
    """In a task, too: nothing of a call is left to be stepped."""
    parking = make_parking()
    called: list[tuple[object, int]] = []
    seen: list[int] = []
    done = anyio.Event()

    def call(argument: object) -> None:
        called.append((argument, threading.get_ident()))
        done.set()

    def unpark() -> None:
        assert parking.unpark_at_once()
        seen.append(len(called))

    parking.park_call(call, "one")

    if caller == "task":
        unpark()
    elif caller == "thread":
        in_a_thread(unpark)
    elif isinstance(loop := current_token().native_token, asyncio.AbstractEventLoop):
        loop.call_soon(unpark)
    else:
        trio.lowlevel.current_trio_token().run_sync_soon(unpark)
    await done.wait()
    assert called == [("one", threading.get_ident())]
    if caller != "thread":
        assert seen == [1]
    assert parking.unpark_at_once()
    assert len(called) == 1, "it is called once"


async def test_a_call_that_is_taken_back_is_not_called() -> None:
    parking = make_parking()
    called: list[object] = []
    parking.park_call(called.append, "one")
    parking.forget()
    parking.unpark_at_once()
    await anyio.wait_all_tasks_blocked()
    assert called == []


async def test_unpark_at_once_of_nobody() -> None:
    parking = make_parking()
    assert parking.unpark_at_once()
    if isinstance(loop := current_token().native_token, asyncio.AbstractEventLoop):
        loop.call_soon(parking.unpark_at_once)
        await anyio.lowlevel.checkpoint()


def test_no_call_runs_while_its_asyncio_loop_stands_still() -> None:
    loop = asyncio.new_event_loop()
    called: list[object] = []

    async def make() -> Parking:
        return make_parking()

    parking = loop.run_until_complete(make())
    parking.park_call(called.append, "one")
    assert parking.unpark_at_once()
    assert called == []
    loop.run_until_complete(asyncio.sleep(0))
    assert called == ["one"]
    loop.close()
