"""The owner thread when things go wrong: after its end, on foreign exceptions, on double begins."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from tilert_engine.worker import OwnerThread
from tilert_stream.errors import EngineDied, EngineFault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Job:
    """Takes ``turns`` turns; says in ``log`` what was called on it."""

    def __init__(self, name: str, log: list[str], *, turns: int = 1) -> None:
        self.name = name
        self.log = log
        self.turns = turns
        self.error: EngineFault | EngineDied | None = None
        self.closed = threading.Event()

    def open(self) -> None:
        self.log.append(f"open {self.name}")

    def turn(self) -> bool:
        self.log.append(f"turn {self.name}")
        self.turns -= 1
        return self.turns > 0

    def close(self) -> None:
        self.log.append(f"close {self.name}")
        self.closed.set()

    def fail(self, error: EngineFault | EngineDied) -> None:
        self.error = error


class Raising(Job):
    """Raises ``exception`` in its turn."""

    def __init__(self, name: str, log: list[str], exception: BaseException) -> None:
        super().__init__(name, log)
        self.exception = exception

    def turn(self) -> bool:
        raise self.exception


def raising(exception: BaseException) -> Callable[[], None]:
    def function() -> None:
        raise exception

    return function


@pytest.fixture
def deaths() -> list[EngineDied]:
    return []


@pytest.fixture
def thread(deaths: list[EngineDied]) -> Iterator[OwnerThread]:
    before = threading.active_count()
    owner = OwnerThread("owner")
    owner.start(deaths.append)
    yield owner
    owner.stop()
    assert threading.active_count() == before


def settle(thread: OwnerThread) -> None:
    """Wait until every command and turn so far is over."""
    done = threading.Event()
    thread.call(done.set)
    assert done.wait(60)


def test_a_job_that_comes_after_the_end_hears_so(thread: OwnerThread) -> None:
    thread.stop()
    job = Job("late", [])
    thread.open(job)
    thread.begin(job)
    assert job.closed.is_set()
    assert isinstance(job.error, EngineDied)
    assert job.log == ["close late"], "the engine is not touched"


def test_a_job_that_came_after_the_end_does_not_run_in_the_next_life(
    thread: OwnerThread, deaths: list[EngineDied]
) -> None:
    thread.stop()
    log: list[str] = []
    thread.open(Job("late", log))
    thread.start(deaths.append)
    job = Job("new", log)
    thread.open(job)
    thread.begin(job)
    assert job.closed.wait(60)
    assert log == ["close late", "open new", "turn new", "close new"]


def test_a_call_after_the_end_is_still_made(thread: OwnerThread) -> None:
    thread.stop()
    settle(thread)


@pytest.mark.parametrize("exception", [SystemExit(1), KeyboardInterrupt(), GeneratorExit()])
def test_an_exception_that_is_no_error_kills_the_engine_too(
    thread: OwnerThread, deaths: list[EngineDied], exception: BaseException
) -> None:
    log: list[str] = []
    other, job = Job("other", log), Raising("raising", log, exception)
    thread.open(other)
    thread.open(job)
    thread.begin(job)
    assert job.closed.wait(60)
    assert other.closed.wait(60)
    settle(thread)
    assert isinstance(other.error, EngineDied)
    assert len(deaths) == 1
    assert deaths[0].__cause__ is exception


def test_a_call_that_raises_kills_the_engine_instead_of_its_thread(
    thread: OwnerThread, deaths: list[EngineDied]
) -> None:
    log: list[str] = []
    job = Job("job", log)
    thread.open(job)
    thread.call(raising(RuntimeError("device lost")))
    assert job.closed.wait(60)
    settle(thread)
    assert isinstance(job.error, EngineDied)
    assert len(deaths) == 1


def test_two_begins_are_one(thread: OwnerThread, deaths: list[EngineDied]) -> None:
    log: list[str] = []
    hold = threading.Event()
    job = Job("job", log)
    thread.call(lambda: hold.wait(60))
    thread.open(job)
    thread.begin(job)
    thread.begin(job)
    hold.set()
    assert job.closed.wait(60)
    settle(thread)
    assert log == ["open job", "turn job", "close job"]
    assert deaths == []


def test_an_owner_thread_is_alone(thread: OwnerThread, deaths: list[EngineDied]) -> None:
    with pytest.raises(RuntimeError, match="already runs"):
        thread.start(deaths.append)


def test_a_close_that_fails_while_stopping_is_logged(
    thread: OwnerThread, caplog: pytest.LogCaptureFixture
) -> None:
    class Unclosable(Job):
        def close(self) -> None:
            raise RuntimeError("the device would not let go")

    thread.open(Unclosable("job", []))
    thread.stop()
    assert "the device would not let go" in caplog.text
