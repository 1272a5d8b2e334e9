from __future__ import annotations

import random
import threading

import anyio
import pytest
from trio.testing import MockClock

from tilert_stream.cluster.admission import Admission, AdmissionStatistics, Ticket
from tilert_stream.errors import Busy

AUTOJUMP: list[tuple[str, dict[str, object]]] = [
    ("trio", {"clock": MockClock(autojump_threshold=0)})
]


class Line:
    """Requests in line, by name, and what each of them got."""

    tasks: anyio.abc.TaskGroup

    def __init__(self, admission: Admission) -> None:
        self.admission = admission
        self.tickets: dict[str, Ticket] = {}
        self.refused: dict[str, Busy] = {}
        self.order: list[str] = []
        self._scopes: dict[str, anyio.CancelScope] = {}

    async def join(self, name: str) -> None:
        self.tasks.start_soon(self._acquire, name)
        await anyio.wait_all_tasks_blocked()

    async def _acquire(self, name: str) -> None:
        with anyio.CancelScope() as self._scopes[name]:
            try:
                self.tickets[name] = await self.admission.acquire()
                self.order.append(name)
            except Busy as error:
                self.refused[name] = error

    def leave(self, name: str) -> None:
        self._scopes[name].cancel()


async def test_slots_are_given_out_while_there_are_any() -> None:
    admission = Admission([7, 3], timeout=0)
    first, second = await admission.acquire(), await admission.acquire()
    assert (first.slot, second.slot) == (7, 3)
    assert admission.statistics() == AdmissionStatistics(slots=2, busy=2, waiting=0)
    first.free()
    assert (await admission.acquire()).slot == 7


async def test_dis_14_without_a_queue_it_refuses_at_once() -> None:
    admission = Admission([0], timeout=0)
    ticket = await admission.acquire()
    for _ in range(2):
        with pytest.raises(Busy, match="all 1 decode slots are busy") as caught:
            await admission.acquire()
        assert caught.value.retry_after == 1
    assert admission.statistics() == AdmissionStatistics(1, 1, 0)
    ticket.free()
    assert admission.statistics() == AdmissionStatistics(1, 0, 0)


async def test_dis_14_first_come_first_served_and_a_gone_waiter_neither_takes_nor_blocks() -> None:
    admission = Admission([0])
    ticket = await admission.acquire()
    line = Line(admission)
    async with anyio.create_task_group() as line.tasks:
        for name in "abcd":
            await line.join(name)
        assert admission.statistics() == AdmissionStatistics(1, 1, 4)
        line.leave("b")
        await anyio.wait_all_tasks_blocked()
        assert admission.statistics() == AdmissionStatistics(1, 1, 3)
        ticket.free()
        for name in "acd":
            await anyio.wait_all_tasks_blocked()
            assert line.order[-1] == name
            line.tickets[name].free()
    assert line.order == ["a", "c", "d"]
    assert admission.statistics() == AdmissionStatistics(1, 0, 0)


async def test_nobody_passes_the_line() -> None:
    admission = Admission([0])
    ticket = await admission.acquire()
    line = Line(admission)
    async with anyio.create_task_group() as line.tasks:
        await line.join("waiting")
        ticket.free()
        # The slot is granted already, though the one who waits has not run yet.
        line.tasks.start_soon(line.join, "late")
        await anyio.wait_all_tasks_blocked()
        assert line.order == ["waiting"]
        line.tickets["waiting"].free()
    assert line.order == ["waiting", "late"]


async def test_a_full_line_refuses_at_once() -> None:
    admission = Admission([0], max_waiting=2)
    ticket = await admission.acquire()
    line = Line(admission)
    async with anyio.create_task_group() as line.tasks:
        for name in "abc":
            await line.join(name)
        assert list(line.refused) == ["c"]
        assert "2 requests already wait" in str(line.refused["c"])
        assert "max_queue is 2" in str(line.refused["c"])
        line.leave("a")
        await anyio.wait_all_tasks_blocked()
        await line.join("d")
        assert list(line.refused) == ["c"], "the place of one who left is free"
        line.tasks.cancel_scope.cancel()
    ticket.free()
    assert admission.statistics() == AdmissionStatistics(1, 0, 0)


@pytest.mark.parametrize("anyio_backend", AUTOJUMP, ids=["autojump"])
async def test_the_time_in_line_is_bounded() -> None:
    admission = Admission([0], timeout=30)
    ticket = await admission.acquire()
    start = anyio.current_time()
    with pytest.raises(Busy, match="stayed busy for 30 s") as caught:
        await admission.acquire()
    assert anyio.current_time() == start + 30
    assert caught.value.retry_after == 1
    assert admission.statistics() == AdmissionStatistics(1, 1, 0)
    ticket.free()
    assert admission.statistics() == AdmissionStatistics(1, 0, 0)


@pytest.mark.parametrize("anyio_backend", AUTOJUMP, ids=["autojump"])
async def test_dis_14_granted_in_the_moment_the_time_is_up_loses_no_slot() -> None:
    for delay in (29.0, 30.0, 31.0):
        for _ in range(20):  # trio runs the tasks of one moment in random order
            admission = Admission([0], timeout=30)
            ticket = await admission.acquire()
            line = Line(admission)
            async with anyio.create_task_group() as line.tasks:
                line.tasks.start_soon(line.join, "a")
                await anyio.sleep(delay)
                ticket.free()
            assert ("a" in line.tickets) != ("a" in line.refused)
            if delay != 30:
                assert ("a" in line.tickets) == (delay < 30)
            busy = len(line.tickets)
            assert admission.statistics() == AdmissionStatistics(1, busy, 0)


@pytest.mark.parametrize("freed_first", [True, False])
async def test_dis_14_granted_in_the_moment_of_cancellation_loses_no_slot(
    *, freed_first: bool
) -> None:
    admission = Admission([0])
    ticket = await admission.acquire()
    line = Line(admission)
    async with anyio.create_task_group() as line.tasks:
        await line.join("a")
        await line.join("b")
        if freed_first:
            ticket.free()
            line.leave("a")
        else:
            line.leave("a")
            ticket.free()
        await anyio.wait_all_tasks_blocked()
        if "a" in line.tickets:  # it was granted before it could be cancelled
            line.tickets.pop("a").free()
            await anyio.wait_all_tasks_blocked()
        assert line.order[-1] == "b"
        line.tickets["b"].free()
    assert admission.statistics() == AdmissionStatistics(1, 0, 0)


async def test_cancelled_at_the_checkpoint_of_a_slot_that_is_free() -> None:
    admission = Admission([0])
    with anyio.CancelScope() as scope:
        scope.cancel()
        await admission.acquire()
    assert scope.cancelled_caught, "acquire is a checkpoint also where a slot is free"
    assert admission.statistics() == AdmissionStatistics(1, 0, 0)


async def test_any_thread_may_free_and_only_the_first_time_counts() -> None:
    admission = Admission([0, 1])
    tickets = [await admission.acquire(), await admission.acquire()]
    line = Line(admission)
    async with anyio.create_task_group() as line.tasks:
        await line.join("a")
        thread = threading.Thread(target=tickets[0].free)
        thread.start()
        thread.join()
        await anyio.wait_all_tasks_blocked()
        assert line.tickets["a"].slot == 0
        tickets[0].free()
        assert admission.statistics() == AdmissionStatistics(2, 2, 0), "the slot is another's now"
    for ticket in (tickets[1], line.tickets["a"]):
        ticket.free()
        ticket.free()
    assert admission.statistics() == AdmissionStatistics(2, 0, 0)


async def test_threads_that_free_while_requests_come() -> None:
    """Slots go round between tasks and threads, and each has one owner at a time."""
    admission = Admission(range(3), max_waiting=1000)
    owned: set[int] = set()
    served: list[int] = []

    async def request(number: int) -> None:
        ticket = await admission.acquire()
        assert ticket.slot not in owned, "a slot has one owner"
        owned.add(ticket.slot)
        served.append(number)

        def free() -> None:
            owned.discard(ticket.slot)
            ticket.free()

        thread = threading.Thread(target=free)
        thread.start()
        threads.append(thread)

    threads: list[threading.Thread] = []
    async with anyio.create_task_group() as tasks:
        for number in range(200):
            tasks.start_soon(request, number)
    for thread in threads:
        thread.join()
    assert sorted(served) == list(range(200))
    assert owned == set()
    assert admission.statistics() == AdmissionStatistics(3, 0, 0)


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_slots_are_conserved_whatever_happens(seed: int) -> None:
    """Against a model: held tickets and a line; joins, frees and cancellations at random."""
    chance = random.Random(seed)
    slots, most = chance.randint(1, 3), 4
    admission = Admission(range(slots), max_waiting=most)
    held: list[str] = []
    waiting: list[str] = []
    line = Line(admission)
    async with anyio.create_task_group() as line.tasks:
        for number in range(60):
            action = chance.choice(["join", "join", "free", "leave"])
            if action == "join":
                name = str(number)
                await line.join(name)
                if len(held) < slots:
                    held.append(name)
                elif len(waiting) < most:
                    waiting.append(name)
                else:
                    assert name in line.refused
            elif action == "free" and held:
                line.tickets[held.pop(chance.randrange(len(held)))].free()
                if waiting:
                    held.append(waiting.pop(0))
                await anyio.wait_all_tasks_blocked()
            elif action == "leave" and waiting:
                line.leave(waiting.pop(chance.randrange(len(waiting))))
                await anyio.wait_all_tasks_blocked()
            assert admission.statistics() == AdmissionStatistics(slots, len(held), len(waiting))
            assert set(held) <= set(line.tickets)
            assert not set(waiting) & set(line.tickets)
            assert len({line.tickets[name].slot for name in held}) == len(held)
        line.tasks.cancel_scope.cancel()
    for name in held:
        line.tickets[name].free()
    assert admission.statistics() == AdmissionStatistics(slots, 0, 0)
