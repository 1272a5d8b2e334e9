"""The ledger against a replay that goes token by token and looks at nothing ahead."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilert_engine.accounting import Account, Ledger
from tilert_engine.chains import ChainPlanner
from tilert_stream.events import Finished, Limits

STOP = 7


@dataclass
class Replay:
    """One request as its tokens come: a token, a step, a chain after the other."""

    ids: list[int] = field(default_factory=list[int])
    steps: list[int] = field(default_factory=list[int])
    """Accepted length of each consumed step."""
    forwards: int = 0
    reason: str = "length"

    def run(self, answer: list[int], chains: list[list[int]], limits: Limits) -> None:
        ended = limits.max_tokens == 1
        made = 0
        for chain in chains:
            for accepted in chain:
                self.forwards += 1
                step = answer[made : made + accepted]
                made += accepted
                if ended:
                    continue
                self.steps.append(accepted)
                for token in step:
                    self.ids.append(token)
                    count = 1 + len(self.ids)
                    if count >= limits.min_tokens and token in limits.eos_ids | limits.stop_ids:
                        ended, self.reason = True, "stop"
                        break
                    if count == limits.max_tokens:
                        ended = True
                        break
            if ended:
                return


@given(
    st.builds(ChainPlanner, st.integers(1, 10), st.integers(1, 4)),
    st.lists(st.integers(1, 4), min_size=1, max_size=8),
    st.integers(2, 80),
    st.integers(0, 20),
    st.lists(st.integers(0, 9), min_size=1, max_size=30),
    st.sampled_from(["none", "eos", "stop"]),
)
def test_the_ledger_equals_a_replay(
    planner: ChainPlanner,
    pattern: list[int],
    max_tokens: int,
    min_tokens: int,
    answer: list[int],
    stops: str,
) -> None:
    limits = Limits(
        max_tokens,
        min_tokens,
        eos_ids=frozenset({STOP}) if stops == "eos" else frozenset(),
        stop_ids=frozenset({STOP}) if stops == "stop" else frozenset(),
    )
    endless = [answer[index % len(answer)] for index in range(8 * max_tokens + 80)]
    ledger = Ledger(limits, mtp=planner.step_tokens > 1)
    ids: list[int] = []
    chains: list[list[int]] = []
    made = step = 0
    while ledger.finished is None:
        accepted = [
            min(pattern[(step + index) % len(pattern)], planner.step_tokens)
            for index in range(planner.length(ledger.remaining))
        ]
        step += len(accepted)
        chains.append(accepted)
        harvest = ledger.take(endless[made : made + sum(accepted)], accepted)
        made += sum(accepted)
        ids += harvest.batch.ids
        assert harvest.finished == ledger.finished
        stopped = harvest.finished is not None and harvest.finished.reason == "stop"
        assert harvest.batch.ends_with_stop == stopped
    replay = Replay()
    replay.run(endless, chains, limits)
    assert ids == replay.ids
    assert 1 + len(ids) <= max_tokens
    assert ledger.finished.reason == replay.reason
    late = ids[max(0, min_tokens - 2) : -1]
    assert stops == "none" or STOP not in late, "nothing comes after a stop token"
    assert (ledger.consumed, ledger.accepted) == (len(replay.steps), sum(replay.steps))
    assert ledger.forwards == replay.forwards == ledger.consumed + ledger.overrun
    if stops == "none":
        assert ledger.overrun == 0


def test_the_step_that_meets_a_stop_counts_with_all_it_accepted() -> None:
    ledger = Ledger(Limits(50, stop_ids=frozenset({STOP})), mtp=True)
    ledger.opened()
    ledger.take([1, 2, 3], [1, 2])
    harvest = ledger.take([4, STOP, 5, 6, 8, 9], [4, 1, 1])
    assert harvest.batch.ids == (4, STOP)
    assert harvest.finished == Finished("stop", stop_reason=STOP)
    assert ledger.account() == Account(
        finish_reason="stop", forwards=6, overrun=2, mtp_verify_calls=3, mtp_accept_mean=2.333
    )


def test_the_step_that_meets_the_budget_counts_with_all_it_accepted() -> None:
    ledger = Ledger(Limits(4), mtp=True)
    harvest = ledger.take([1, 2, 3, 4], [4])
    assert harvest.batch.ids == (1, 2, 3)
    assert not harvest.batch.ends_with_stop
    assert ledger.account() == Account(
        finish_reason="length", forwards=1, overrun=0, mtp_verify_calls=1, mtp_accept_mean=4.0
    )


def test_the_example_of_the_documentation() -> None:
    ledger, planner = Ledger(Limits(12), mtp=True), ChainPlanner(8, 4)
    ledger.opened()
    assert planner.length(ledger.remaining) == 3
    assert ledger.take(range(8), [1, 4, 3]).finished is None
    assert (ledger.remaining, planner.length(ledger.remaining)) == (3, 1)
    finished = ledger.take([8, 9, 10, 11], [4]).finished
    assert finished is not None
    assert finished == Finished("length")
    assert finished.account == Account(
        finish_reason="length", forwards=5, overrun=0, mtp_verify_calls=4, mtp_accept_mean=3.0
    )


def test_the_opening_step_is_a_forward_and_nothing_else() -> None:
    ledger = Ledger(Limits(4), mtp=True)
    ledger.opened()
    assert ledger.account() == Account(forwards=1, overrun=0)
    assert ledger.remaining == 3


def test_steps_enqueued_behind_the_end_are_overrun() -> None:
    ledger = Ledger(Limits(8, eos_ids=frozenset({2})))
    ledger.overran(5)
    harvest = ledger.take([7, 2], [1, 1])
    assert harvest.finished is not None
    assert harvest.finished.account == {"forwards": 7, "overrun": 5, "finish_reason": "stop"}


def test_without_mtp_nothing_is_verified() -> None:
    ledger = Ledger(Limits(3))
    ledger.take([1, 2], [1, 1])
    assert ledger.account() == Account(finish_reason="length", forwards=2, overrun=0)


def test_a_request_that_is_over_takes_nothing_more() -> None:
    ledger = Ledger(Limits(2))
    ledger.take([1], [1])
    with pytest.raises(ValueError, match="this request is over"):
        ledger.take([2], [1])


@pytest.mark.parametrize(("ids", "accepted"), [([1, 2], [1]), ([1], [1, 1]), ([1], [0, 1])])
def test_ids_and_steps_must_fit(ids: list[int], accepted: list[int]) -> None:
    with pytest.raises(ValueError, match=f"{len(ids)} ids came from steps of"):
        Ledger(Limits(9)).take(ids, accepted)
