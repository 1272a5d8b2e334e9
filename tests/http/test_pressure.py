"""When a thread has no time left: over a window, and with two marks far apart."""

from __future__ import annotations

import pytest

from tilert_stream.http.pressure import HIGH, LOW, WINDOW, Pressure


class Clocks:
    """The clock's time, and the thread's."""

    def __init__(self) -> None:
        self.now = 100.0
        self.worked = 7.0
        self.pressure = Pressure(lambda: self.now, lambda: self.worked)

    def after(self, seconds: float, share: float) -> bool:
        self.now += seconds
        self.worked += seconds * share
        return self.pressure.high()


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


def test_less_than_a_window_says_nothing(clocks: Clocks) -> None:
    assert not clocks.pressure.high()
    assert not clocks.after(WINDOW * 0.9, 1.0)


def test_a_window_full_of_work_is_high_until_the_next_has_little(clocks: Clocks) -> None:
    assert clocks.after(WINDOW * 1.1, (1 + HIGH) / 2)
    assert clocks.after(WINDOW * 1.1, (LOW + HIGH) / 2)
    assert not clocks.after(WINDOW * 1.1, LOW / 2)


def test_between_the_marks_nothing_begins(clocks: Clocks) -> None:
    for _ in range(5):
        assert not clocks.after(WINDOW * 1.1, (LOW + HIGH) / 2)


def test_a_burst_behind_a_long_rest_is_not_high(clocks: Clocks) -> None:
    assert not clocks.after(60, 0.01)
    assert not clocks.after(WINDOW / 2, 1.0)


def test_the_clocks_are_this_threads_by_default() -> None:
    pressure = Pressure()
    assert not pressure.high()


def test_what_it_was_is_what_was_said_last(clocks: Clocks) -> None:
    assert not clocks.pressure.was_high
    assert clocks.after(WINDOW * 1.1, 1.0)
    clocks.now += 60
    assert clocks.pressure.was_high
    assert not clocks.pressure.high()
    assert not clocks.pressure.was_high
