"""The owner thread at work: fair turns, commands between them, one end for each job."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from tilert_engine.worker import OwnerThread
from tilert_stream.errors import EngineDied, EngineFault


def nothing() -> None:
    """A hook of a job."""


class Job:
    """Takes ``turns`` turns, and writes down what is called on it, on which thread."""

    def __init__(self, name: str, log: list[str], *, turns: int = 3) -> None:
        self.name = name
        self.log = log
        self.turns = turns
        self.opens: Callable[[], object] = nothing
        self.in_turn: Callable[[], object] = nothing
        self.in_close: Callable[[], object] = nothing
        self.errors: list[EngineFault | EngineDied] = []
        self.threads: set[str] = set()

    def note(self, what: str) -> None:
        self.log.append(f"{what} {self.name}")
        self.threads.add(threading.current_thread().name)

    def open(self) -> None:
        self.note("open")
        self.opens()

    def turn(self) -> bool:
        self.note("turn")
        self.in_turn()
        self.turns -= 1
        return self.turns > 0

    def close(self) -> None:
        self.note("close")
        self.in_close()

    def fail(self, error: EngineFault | EngineDied) -> None:
        self.note("fail")
        self.errors.append(error)


def faulty(error: Exception) -> None:
    raise error


class Worker(OwnerThread):
    """An owner thread that tells when it has nothing to do."""

    def __init__(self) -> None:
        super().__init__("owner")
        self.deaths: list[EngineDied] = []

    def held(self) -> Held:
        """Keep the thread from working while commands gather."""
        return Held(self)

    def wait(self, times: int = 100) -> None:
        """Return when ``times`` commands have passed: between two, each job can have a turn."""
        for _ in range(times):
            passed = threading.Event()
            self.call(passed.set)
            passed.wait()


class Held:
    def __init__(self, worker: OwnerThread) -> None:
        self.worker = worker
        self.gate = threading.Event()

    def __enter__(self) -> None:
        self.worker.call(self.gate.wait)

    def __exit__(self, *_: object) -> None:
        self.gate.set()


@pytest.fixture
def worker() -> Iterator[Worker]:
    before = set(threading.enumerate())
    worker = Worker()
    worker.start(worker.deaths.append)
    yield worker
    worker.stop()
    assert set(threading.enumerate()) <= before, "no thread is left behind"


@pytest.fixture
def log() -> list[str]:
    return []


def ended(job: Job) -> threading.Event:
    """Set when ``job`` is closed."""
    event = threading.Event()
    job.in_close = event.set
    return event


def run_to_the_end(worker: Worker, *jobs: Job) -> None:
    ends = [ended(job) for job in jobs]
    with worker.held():
        for job in jobs:
            worker.open(job)
            worker.begin(job)
    for end in ends:
        end.wait()


def test_turns_go_round(worker: Worker, log: list[str]) -> None:
    jobs = [Job("a", log), Job("b", log, turns=2), Job("c", log)]
    run_to_the_end(worker, *jobs)
    assert log == [
        *("open a", "open b", "open c"),
        *("turn a", "turn b", "turn c"),
        *("turn a", "turn b", "close b", "turn c"),
        *("turn a", "close a", "turn c", "close c"),
    ]
    for job in jobs:
        assert job.threads == {"owner"}, "nobody else calls an engine"
        assert job.errors == []


def test_a_new_job_has_its_turn_among_the_old(worker: Worker, log: list[str]) -> None:
    old, new = Job("old", log, turns=5), Job("new", log, turns=2)

    def after_two() -> None:
        if old.turns == 4:
            worker.open(new)
            worker.begin(new)

    old.in_turn = after_two
    ends = [ended(old), ended(new)]
    worker.open(old)
    worker.begin(old)
    for end in ends:
        end.wait()
    turns = [entry[5:] for entry in log if entry.startswith("turn")]
    assert turns == ["old", "old", "old", "new", "old", "new", "old"]


def test_a_job_waits_for_its_begin(worker: Worker, log: list[str]) -> None:
    job = Job("a", log, turns=1)
    end = ended(job)
    worker.open(job)
    worker.wait()
    assert log == ["open a"]
    worker.begin(job)
    end.wait()
    assert log == ["open a", "turn a", "close a"]


def test_commands_come_before_the_next_turn(worker: Worker, log: list[str]) -> None:
    """A close that is given in a turn lets no other turn pass."""
    job = Job("a", log, turns=1000)
    end = ended(job)

    def close_in_the_third() -> None:
        if job.turns == 998:
            worker.close(job)
            worker.call(lambda: log.append("call"))

    job.in_turn = close_in_the_third
    worker.open(job)
    worker.begin(job)
    end.wait()
    worker.wait()
    assert log == ["open a", "turn a", "turn a", "turn a", "close a", "call"]


def test_a_job_is_closed_once(worker: Worker, log: list[str]) -> None:
    job = Job("a", log, turns=1)
    run_to_the_end(worker, job)
    worker.close(job)
    worker.begin(job)
    worker.wait()
    assert log == ["open a", "turn a", "close a"]


def test_a_close_before_the_begin(worker: Worker, log: list[str]) -> None:
    job = Job("a", log)
    worker.open(job)
    worker.close(job)
    worker.begin(job)
    worker.wait()
    assert log == ["open a", "close a"]


@pytest.mark.parametrize("place", ["opens", "in_turn"])
def test_a_fault_fails_one_job_and_keeps_the_others(
    worker: Worker, log: list[str], place: str
) -> None:
    fault = EngineFault("a bad page")
    good, bad = Job("good", log), Job("bad", log)
    setattr(bad, place, lambda: faulty(fault))
    run_to_the_end(worker, bad, good)
    assert bad.errors == [fault]
    assert good.errors == []
    assert [entry for entry in log if entry.endswith("bad")][-2:] == ["fail bad", "close bad"]
    assert log[-1] == "close good"
    assert worker.deaths == []


@pytest.mark.parametrize("place", ["opens", "in_turn", "in_close"])
def test_any_other_error_kills_the_engine(worker: Worker, log: list[str], place: str) -> None:
    cause = RuntimeError("device lost")
    bad, other, later = Job("bad", log, turns=1), Job("other", log), Job("later", log)
    setattr(bad, place, lambda: faulty(cause))
    ends = [ended(other), ended(later)]
    with worker.held():
        for job in (other, bad):
            worker.open(job)
            worker.begin(job)
    ends[0].wait()
    worker.open(later)
    worker.begin(later)
    ends[1].wait()
    [death] = worker.deaths
    assert death.__cause__ is cause
    assert other.errors == later.errors == [death]
    assert bad.errors == ([] if place == "in_close" else [death])
    assert "open later" not in log, "a dead engine is not called"
    for name in ("bad", "other", "later"):
        assert log.count(f"close {name}") == 1


def test_readiness_ends_before_the_first_client_hears(log: list[str]) -> None:
    def dead(_death: EngineDied) -> None:
        log.append("dead")

    worker = Worker()
    worker.start(dead)
    job = Job("a", log)
    job.in_turn = lambda: faulty(RuntimeError("device lost"))
    run_to_the_end(worker, job)
    worker.stop()
    assert log == ["open a", "turn a", "dead", "fail a", "close a"]


def test_a_death_while_others_are_closed_is_one_death(worker: Worker, log: list[str]) -> None:
    jobs = [Job(name, log) for name in "abc"]
    last = threading.Event()

    def broken() -> None:
        if sum(entry.startswith("close") for entry in log) == len(jobs):
            last.set()
        raise RuntimeError("device lost")

    for job in jobs:
        job.in_close = broken
    jobs[0].in_turn = broken
    with worker.held():
        for job in jobs:
            worker.open(job)
            worker.begin(job)
    last.wait()
    worker.wait()
    assert len(worker.deaths) == 1
    assert [job.errors for job in jobs] == [worker.deaths] * 3


def test_stop_while_jobs_are_open_fails_them(worker: Worker, log: list[str]) -> None:
    busy, idle = Job("busy", log, turns=10**9), Job("idle", log)
    worker.open(idle)
    worker.open(busy)
    worker.begin(busy)
    worker.wait()
    worker.stop()
    for job in (busy, idle):
        [error] = job.errors
        assert isinstance(error, EngineDied)
        assert "stopped" in str(error)
        assert log.count(f"close {job.name}") == 1
    assert worker.deaths == [], "a stop is no death"


def test_stop_twice_and_before_the_start() -> None:
    worker = Worker()
    worker.stop()
    worker.start(worker.deaths.append)
    worker.stop()
    worker.stop()


def test_it_can_be_started_again(worker: Worker, log: list[str]) -> None:
    bad = Job("bad", log)
    bad.in_turn = lambda: faulty(RuntimeError("device lost"))
    run_to_the_end(worker, bad)
    worker.stop()
    worker.start(worker.deaths.append)
    good = Job("good", log, turns=1)
    run_to_the_end(worker, good)
    assert log[-3:] == ["open good", "turn good", "close good"]
    assert good.errors == []


def test_commands_from_many_threads(worker: Worker, log: list[str]) -> None:
    """Every job is opened and closed once, whichever thread gives its commands."""
    jobs = [Job(str(number), log, turns=2) for number in range(40)]
    ends = [ended(job) for job in jobs]
    start = threading.Barrier(4)

    def give(part: list[Job]) -> None:
        start.wait()
        for job in part:
            worker.open(job)
            worker.begin(job)
            if int(job.name) % 3 == 0:
                worker.close(job)

    threads = [threading.Thread(target=give, args=(jobs[n::4],)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for end in ends:
        end.wait()
    for job in jobs:
        assert log.count(f"open {job.name}") == log.count(f"close {job.name}") == 1
        assert log.count(f"turn {job.name}") <= 2
