from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilert_stream.errors import LifecycleError
from tilert_stream.lifecycle import ENDS, TRANSITIONS, Lifecycle, State

FORWARD = [
    State.QUEUED,
    State.RESERVED,
    State.PREFILLING,
    State.IMPORTING_KV,
    State.DECODING,
]


def at(state: State) -> Lifecycle:
    """A request that stands at ``state``."""
    lifecycle = Lifecycle()
    if state in ENDS:
        lifecycle.move(state)
        return lifecycle
    for step in FORWARD[1 : FORWARD.index(state) + 1]:
        lifecycle.move(step)
    return lifecycle


def test_the_table_speaks_of_every_state() -> None:
    assert set(TRANSITIONS) == set(State)
    assert set(FORWARD) | ENDS == set(State)


def test_the_table_leads_to_every_state_but_the_first() -> None:
    assert set().union(*TRANSITIONS.values()) == set(State) - {State.QUEUED}


def test_rule_1_forward_only() -> None:
    for index, state in enumerate(FORWARD):
        assert TRANSITIONS[state] - ENDS == set(FORWARD[index + 1 :])


def test_rules_2_and_3_every_end_from_every_living_state() -> None:
    for state in FORWARD:
        assert TRANSITIONS[state] >= ENDS


def test_rule_4_ends_are_final() -> None:
    for state in ENDS:
        assert TRANSITIONS[state] == frozenset()
        for second in ENDS:
            lifecycle = at(state)
            entered = dict(lifecycle.entered)
            assert not lifecycle.end(second)
            assert lifecycle.state is state
            assert lifecycle.entered == entered


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("goal", State)
def test_every_move_does_what_the_table_says(state: State, goal: State) -> None:
    lifecycle = at(state)
    if goal in TRANSITIONS[state]:
        lifecycle.move(goal)
        assert lifecycle.state is goal
        return
    with pytest.raises(LifecycleError, match=f"not to {goal.value}$") as caught:
        lifecycle.move(goal)
    assert lifecycle.state is state, "a forbidden move changes nothing"
    message = str(caught.value)
    assert message.startswith(f"{state.value} leads to ")
    for allowed in TRANSITIONS[state]:
        assert allowed.value in message
    if state in ENDS:
        assert "leads to nothing" in message


def test_times_are_those_of_the_clock() -> None:
    ticks = count(10)
    lifecycle = Lifecycle(clock=lambda: float(next(ticks)))
    lifecycle.move(State.RESERVED)
    assert lifecycle.end(State.CANCELLED)
    assert lifecycle.entered == {State.QUEUED: 10, State.RESERVED: 11, State.CANCELLED: 12}


@given(st.lists(st.sampled_from(State), max_size=12))
def test_whatever_is_tried_a_request_only_moves_forward_and_ends_once(tried: list[State]) -> None:
    ticks = count()
    lifecycle = Lifecycle(clock=lambda: float(next(ticks)))
    passed = [lifecycle.state]
    for state in tried:
        try:
            lifecycle.move(state)
        except LifecycleError:
            continue
        passed.append(state)
    living = [state for state in passed if state in FORWARD]
    places = [FORWARD.index(state) for state in living]
    assert places == sorted(set(places))
    assert sum(state in ENDS for state in passed) <= 1
    assert list(lifecycle.entered) == passed
    times = list(lifecycle.entered.values())
    assert times == sorted(times)
