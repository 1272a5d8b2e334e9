from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import anyio
import pytest
from trio.testing import assert_checkpoints, assert_no_checkpoints

from tilert_stream.completion import Completion

ASYNCIO = [
    pytest.param(("asyncio", {"use_uvloop": False}), id="asyncio"),
    pytest.param(("asyncio", {"use_uvloop": True}), id="uvloop"),
]


def in_a_thread(function: Callable[[], object]) -> None:
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


async def test_a_value_set_by_a_thread_wakes_the_waiter() -> None:
    completion = Completion[int]()
    got: list[int] = []

    async def wait() -> None:
        got.append(await completion.wait())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        assert got == []
        assert not completion.done
        in_a_thread(lambda: completion.set(7))
    assert got == [7]
    assert completion.done
    assert completion.value == 7


async def test_an_error_is_raised_in_the_waiter() -> None:
    completion = Completion[int]()
    error = ValueError("the cable was pulled")
    in_a_thread(lambda: completion.fail(error))
    with pytest.raises(ValueError, match="the cable was pulled") as caught:
        await completion.wait()
    assert caught.value is error
    with pytest.raises(RuntimeError, match="no value"):
        _ = completion.value


async def test_no_outcome_no_value() -> None:
    with pytest.raises(RuntimeError, match="no value"):
        _ = Completion[int]().value


async def test_the_first_outcome_stays() -> None:
    completion = Completion[int]()
    assert completion.set(1)
    assert not completion.set(2)
    assert not completion.fail(ValueError("late"))
    assert await completion.wait() == 1
    failed = Completion[int]()
    assert failed.fail(ValueError("first"))
    assert not failed.set(2)
    with pytest.raises(ValueError, match="first"):
        await failed.wait()


async def test_one_of_many_threads_wins() -> None:
    for _ in range(50):
        completion = Completion[int]()
        start = threading.Barrier(4)
        won: list[int] = []

        def settle(
            number: int, completion: Completion[int], start: threading.Barrier, won: list[int]
        ) -> None:
            start.wait()
            if completion.set(number):
                won.append(number)

        threads = [
            threading.Thread(target=settle, args=(number, completion, start, won))
            for number in range(4)
        ]
        for thread in threads:
            thread.start()
        value = await completion.wait()
        for thread in threads:
            thread.join()
        assert won == [value]


async def test_none_is_a_value() -> None:
    completion = Completion[None]()
    completion.set(None)
    assert completion.done
    assert await completion.wait() is None  # type: ignore[func-returns-value] # that it is, is the test


async def test_a_cancelled_waiter_can_wait_again() -> None:
    completion = Completion[int]()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(completion.wait)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    completion.set(3)
    assert await completion.wait() == 3


async def test_set_and_cancelled_in_one_moment_keeps_the_outcome() -> None:
    completion = Completion[int]()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(completion.wait)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
        assert completion.set(3)
    assert completion.value == 3


async def test_wait_is_always_a_checkpoint() -> None:
    completion = Completion[int]()
    completion.set(1)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await completion.wait()
    assert scope.cancelled_caught


@pytest.mark.parametrize("anyio_backend", ASYNCIO)
async def test_wait_lets_others_run_on_asyncio() -> None:
    completion = Completion[int]()
    completion.set(1)
    ran: list[bool] = []
    asyncio.get_running_loop().call_soon(ran.append, True)
    await completion.wait()
    assert ran == [True]


@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_set_and_fail_never_are() -> None:
    completion = Completion[int]()
    with assert_no_checkpoints():
        completion.set(1)
        completion.fail(ValueError("late"))
    with assert_checkpoints():
        await completion.wait()
