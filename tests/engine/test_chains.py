"""The planner against what really happens, for every way in which drafts can be accepted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilert_engine.chains import DEFAULT_AR_STEPS, ChainPlanner
from tilert_stream.errors import ConfigError

PLANNERS = st.builds(ChainPlanner, st.integers(1, 40), st.integers(1, 6))
BUDGETS = st.integers(1, 300)
ACCEPTANCE = st.lists(st.integers(1, 6), min_size=1, max_size=12)


def accepted_by(planner: ChainPlanner, pattern: list[int], step: int) -> int:
    return min(pattern[step % len(pattern)], planner.step_tokens)


def steps_needed(planner: ChainPlanner, budget: int, pattern: list[int]) -> int:
    """Steps until the budget is reached, one after the other: no engine can do with fewer."""
    step = made = 0
    while made < budget:
        made += accepted_by(planner, pattern, step)
        step += 1
    return step


@given(PLANNERS, BUDGETS, ACCEPTANCE)
def test_no_forward_beyond_the_minimum_chain_by_chain(
    planner: ChainPlanner, budget: int, pattern: list[int]
) -> None:
    step = made = 0
    while made < budget:
        steps = planner.length(budget - made)
        assert 1 <= steps <= planner.ar_steps
        for _ in range(steps):
            made += accepted_by(planner, pattern, step)
            step += 1
    assert step == steps_needed(planner, budget, pattern)
    assert made < budget + planner.step_tokens


@given(PLANNERS, BUDGETS, ACCEPTANCE)
def test_no_forward_beyond_the_minimum_with_a_chain_enqueued_ahead(
    planner: ChainPlanner, budget: int, pattern: list[int]
) -> None:
    step = made = 0
    chains: list[int] = []
    while made < budget:
        if not chains:
            chains.append(planner.length(budget - made))
        if (behind := planner.ahead(budget - made, sum(chains))) > 0:
            assert behind <= planner.ar_steps
            chains.append(behind)
        for _ in range(chains.pop(0)):
            made += accepted_by(planner, pattern, step)
            step += 1
    assert not chains, "nothing is enqueued that nobody reads"
    assert step == steps_needed(planner, budget, pattern)


@given(PLANNERS, BUDGETS)
def test_what_is_planned_is_as_much_as_can_be(planner: ChainPlanner, budget: int) -> None:
    """One step more could be superfluous: the shortest plan is also the longest safe one."""
    steps = planner.length(budget)
    if steps < planner.ar_steps:
        assert steps_needed(planner, budget, [planner.step_tokens]) == steps
    behind = planner.ahead(budget, steps)
    if behind < planner.ar_steps:
        assert steps_needed(planner, budget, [planner.step_tokens]) == steps + behind


@pytest.mark.parametrize(
    ("step_tokens", "remaining", "steps"),
    [(1, 1, 1), (1, 7, 7), (1, 8, 8), (1, 9, 8), (4, 1, 1), (4, 4, 1), (4, 5, 2), (4, 33, 8)],
)
def test_lengths(step_tokens: int, remaining: int, steps: int) -> None:
    assert ChainPlanner(DEFAULT_AR_STEPS, step_tokens).length(remaining) == steps


@pytest.mark.parametrize(
    ("step_tokens", "remaining", "running", "steps"),
    [(1, 8, 8, 0), (1, 9, 8, 1), (1, 99, 8, 8), (4, 32, 8, 0), (4, 33, 8, 1), (4, 20, 8, 0)],
)
def test_lengths_ahead(step_tokens: int, remaining: int, running: int, steps: int) -> None:
    assert ChainPlanner(DEFAULT_AR_STEPS, step_tokens).ahead(remaining, running) == steps


@pytest.mark.parametrize("remaining", [0, -1])
def test_a_spent_budget_has_no_chain(remaining: int) -> None:
    with pytest.raises(ValueError, match=f"{remaining} tokens remain"):
        ChainPlanner().length(remaining)


@pytest.mark.parametrize("ar_steps", [0, -1, 1025])
def test_a_chain_has_1_to_1024_steps(ar_steps: int) -> None:
    with pytest.raises(ConfigError, match=rf"ar_steps is {ar_steps}; it must be 1 to 1024"):
        ChainPlanner(ar_steps)


def test_a_step_yields_a_token() -> None:
    with pytest.raises(ConfigError, match="a step yields 0 tokens"):
        ChainPlanner(8, 0)


@given(PLANNERS, BUDGETS, st.integers(1, 40))
def test_little_is_risked_where_a_stop_token_can_come(
    planner: ChainPlanner, budget: int, running: int
) -> None:
    sure = planner.ahead(budget, running)
    risked = planner.ahead(budget, running, may_stop=True)
    assert risked == (min(sure, 1) if running > 1 else sure)
