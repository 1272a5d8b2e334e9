from __future__ import annotations

import asyncio
import threading

import anyio
import anyio.lowlevel
import pytest
from trio.testing import MockClock, assert_checkpoints, assert_no_checkpoints

from tilert_stream.events import Finished
from tilert_stream.mailbox import Mailbox

END = Finished("length")
AUTOJUMP: list[tuple[str, dict[str, object]]] = [
    ("trio", {"clock": MockClock(autojump_threshold=0)})
]
ASYNCIO = [
    pytest.param(("asyncio", {"use_uvloop": False}), id="asyncio"),
    pytest.param(("asyncio", {"use_uvloop": True}), id="uvloop"),
]


async def read_to_the_end(mailbox: Mailbox[int]) -> list[list[int | Finished]]:
    """What each wake brought."""
    drained: list[list[int | Finished]] = []
    while True:
        await mailbox.wait()
        drained.append(mailbox.drain())
        if isinstance(drained[-1][-1], Finished):
            return drained


@pytest.mark.parametrize("threads", [1, 4])
async def test_threads_put_while_the_loop_reads(threads: int) -> None:
    mailbox: Mailbox[int] = Mailbox()
    start = threading.Barrier(threads)
    each = 2000

    def produce(number: int) -> None:
        start.wait()
        for index in range(each):
            assert mailbox.put(number * each + index)

    def produce_all() -> None:
        workers = [threading.Thread(target=produce, args=(n,)) for n in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        mailbox.put(END)

    producer = threading.Thread(target=produce_all)
    producer.start()
    drained = await read_to_the_end(mailbox)
    await anyio.to_thread.run_sync(producer.join)

    items = [item for batch in drained for item in batch]
    assert items.pop() is END
    numbers = [item for item in items if isinstance(item, int)]
    assert sorted(numbers) == list(range(threads * each))
    for number in range(threads):
        own = [n for n in numbers if n // each == number]
        assert own == sorted(own), "one producer's items keep their order"
    statistics = mailbox.statistics()
    assert statistics.items == threads * each + 1
    assert statistics.waiting == 0
    assert statistics.wakes <= len(drained), "a wake for each look at most"


async def test_one_wake_serves_many_puts() -> None:
    mailbox: Mailbox[int] = Mailbox()
    drained: list[list[int | Finished]] = []

    async def read() -> None:
        drained.extend(await read_to_the_end(mailbox))

    def produce() -> None:
        for number in range(100):
            mailbox.put(number)
        mailbox.put(100, END)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        await anyio.wait_all_tasks_blocked()
        producer = threading.Thread(target=produce)
        producer.start()
        producer.join()  # holds the loop, so that the reader cannot look in between
    assert drained == [[*range(101), END]]
    assert mailbox.statistics().wakes == 1


async def test_a_reader_that_is_awake_gets_no_wake() -> None:
    mailbox: Mailbox[int] = Mailbox()
    assert mailbox.put(1)
    assert mailbox.put(2)
    await mailbox.wait()
    assert mailbox.put(3, END)
    assert mailbox.drain() == [1, 2, 3, END]
    assert mailbox.statistics().wakes == 0


async def test_a_reader_that_has_drained_is_awake_until_it_waits() -> None:
    mailbox: Mailbox[int] = Mailbox()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(mailbox.wait)
        await anyio.wait_all_tasks_blocked()
        mailbox.put(1)
    assert mailbox.drain() == [1]
    mailbox.put(2)
    assert mailbox.statistics().wakes == 1
    await mailbox.wait()
    assert mailbox.drain() == [2]


async def test_the_end_is_the_last_item() -> None:
    mailbox: Mailbox[int] = Mailbox()
    assert mailbox.put(1, END)
    assert not mailbox.put(2)
    assert not mailbox.put(END)
    assert mailbox.drain() == [1, END]
    assert not mailbox.put(3), "drained or not, the stream has ended"
    assert mailbox.drain() == []


async def test_a_put_of_nothing_changes_nothing() -> None:
    mailbox: Mailbox[int] = Mailbox()
    assert mailbox.put()
    assert mailbox.statistics().items == 0
    assert mailbox.put(END)


async def test_a_reader_that_has_left_is_told_to_the_producer() -> None:
    mailbox: Mailbox[int] = Mailbox()
    mailbox.put(1)
    mailbox.close()
    mailbox.close()
    assert not mailbox.put(2)
    assert mailbox.drain() == []
    assert mailbox.statistics().waiting == 0


def test_the_end_of_the_loop_is_told_to_the_producer() -> None:
    loop = asyncio.new_event_loop()

    async def make() -> Mailbox[int]:
        return Mailbox()

    mailbox = loop.run_until_complete(make())
    reader = loop.create_task(mailbox.wait())
    loop.call_soon(loop.stop)
    loop.run_forever()  # stopped with the reader parked: nobody will ever wake it
    loop.close()
    results: list[bool] = []

    def produce() -> None:
        results.extend((mailbox.put(1), mailbox.put(2)))

    producer = threading.Thread(target=produce)
    producer.start()
    producer.join()
    assert results == [False, False]
    assert mailbox.statistics().waiting == 0, "nothing piles up for a reader that has gone"
    assert not reader.done()


async def test_a_cancelled_reader_can_come_back() -> None:
    mailbox: Mailbox[int] = Mailbox()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(mailbox.wait)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert mailbox.put(1)
    assert mailbox.statistics().wakes == 0, "nobody was parked"
    await mailbox.wait()
    assert mailbox.drain() == [1]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(mailbox.wait)
        await anyio.wait_all_tasks_blocked()
        assert mailbox.put(2)
    assert mailbox.drain() == [2]


async def test_cancelled_and_woken_in_one_moment_loses_nothing() -> None:
    mailbox: Mailbox[int] = Mailbox()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(mailbox.wait)
        await anyio.wait_all_tasks_blocked()
        mailbox.put(1)
        tasks.cancel_scope.cancel()
    mailbox.put(2)
    await mailbox.wait()
    assert mailbox.drain() == [1, 2]


async def test_a_wake_without_cause_is_slept_through() -> None:
    mailbox: Mailbox[int] = Mailbox()
    woken: list[bool] = []

    async def read() -> None:
        await mailbox.wait()
        woken.append(True)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        await anyio.wait_all_tasks_blocked()
        mailbox.put(1)
        assert mailbox.drain() == [1]  # taken before the reader has run
        await anyio.wait_all_tasks_blocked()
        assert woken == []
        mailbox.put(2)
    assert woken == [True]
    assert mailbox.statistics().wakes == 2


async def test_wait_is_always_a_checkpoint() -> None:
    mailbox: Mailbox[int] = Mailbox()
    mailbox.put(1)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await mailbox.wait()
    assert scope.cancelled_caught


@pytest.mark.parametrize("anyio_backend", ASYNCIO)
async def test_wait_lets_others_run_on_asyncio() -> None:
    mailbox: Mailbox[int] = Mailbox()
    mailbox.put(1)
    ran: list[bool] = []
    asyncio.get_running_loop().call_soon(ran.append, True)
    await mailbox.wait()
    assert ran == [True]


async def test_linger_is_always_a_checkpoint() -> None:
    mailbox: Mailbox[int] = Mailbox()
    mailbox.put(END)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await mailbox.linger(10)
    assert scope.cancelled_caught


@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_put_drain_and_close_never_are() -> None:
    mailbox: Mailbox[int] = Mailbox()
    mailbox.put(1)
    with assert_checkpoints():
        await mailbox.wait()
    with assert_no_checkpoints():
        mailbox.put(2)
        mailbox.drain()
        mailbox.close()


@pytest.mark.parametrize("anyio_backend", AUTOJUMP, ids=["autojump"])
async def test_linger_gathers_for_its_time() -> None:
    mailbox: Mailbox[int] = Mailbox()

    async def produce() -> None:
        for number in range(1, 5):
            await anyio.sleep(1)
            mailbox.put(number)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(produce)
        await mailbox.wait()
        start = anyio.current_time()
        await mailbox.linger(2.5)
        assert anyio.current_time() == start + 2.5
        assert mailbox.drain() == [1, 2, 3]
        tasks.cancel_scope.cancel()


async def test_linger_ends_with_the_stream() -> None:
    mailbox: Mailbox[int] = Mailbox()
    mailbox.put(1)

    async def produce() -> None:
        mailbox.put(2)
        await anyio.lowlevel.checkpoint()
        mailbox.put(3, END)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(produce)
            await mailbox.linger(10_000)
    assert mailbox.drain() == [1, 2, 3, END]
