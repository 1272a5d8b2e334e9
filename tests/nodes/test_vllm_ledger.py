from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.nodes.vllm_scheduler import Output, finished
from tilert_stream.cluster.prompt_digest import prompt_digest
from tilert_stream.nodes.hand_over.destination import Destination, Grant, params_for
from tilert_stream.nodes.vllm.ledger import Extraction, Ledger, StepWork, Withdrawal

BLOCK = 4
NODE = Destination("node-1", 5556, Grant("a1", "inc", 3))
PARAMS = params_for(NODE)
PROMPT = list(range(100, 110))
"""Ten ids: three blocks."""


def whole(blocks: tuple[int, ...], request_id: str = "r") -> StepWork:
    return StepWork((Extraction(request_id, NODE, 10, 109, prompt_digest(PROMPT), blocks),))


def test_a_prompt_in_one_step_is_handed_over_with_it() -> None:
    ledger = Ledger(BLOCK)
    step = ledger.step(Output().new("r", PROMPT, blocks=[7, 3, 9], scheduled=10, params=PARAMS))
    assert step == whole((7, 3, 9))
    assert ledger.step(Output().more("r", computed=10, scheduled=1)) == StepWork()
    ledger.finish(finished("r"))
    assert ledger.open == 0
    assert ledger.step(Output()) == StepWork()


def test_a_prompt_in_chunks_is_handed_over_with_the_last() -> None:
    ledger = Ledger(BLOCK)
    first = Output().new("r", PROMPT, blocks=[7], scheduled=4, params=PARAMS)
    assert ledger.step(first) == StepWork()
    assert ledger.step(Output().more("r", computed=4, scheduled=4, blocks=[3])) == StepWork()
    assert ledger.step(Output()) == StepWork()
    last = Output().more("r", computed=8, scheduled=2, blocks=[9])
    assert ledger.step(last) == whole((7, 3, 9))


def test_a_chunk_without_new_blocks_keeps_the_old_ones() -> None:
    ledger = Ledger(BLOCK)
    ledger.step(Output().new("r", PROMPT, blocks=[7, 3, 9], scheduled=9, params=PARAMS))
    assert ledger.step(Output().more("r", computed=9, scheduled=1)) == whole((7, 3, 9))


def test_blocks_of_a_prefix_hit_are_handed_over_too() -> None:
    ledger = Ledger(BLOCK)
    hit = Output().new("r", PROMPT, blocks=[1, 2, 9], computed=8, scheduled=2, params=PARAMS)
    assert ledger.step(hit) == whole((1, 2, 9))


def test_blocks_reserved_for_the_answer_are_left_out() -> None:
    ledger = Ledger(BLOCK)
    step = Output().new("r", PROMPT, blocks=[7, 3, 9, 11], scheduled=10, params=PARAMS)
    assert ledger.step(step) == whole((7, 3, 9))


def test_a_preempted_prompt_is_taken_up_again_when_it_resumes() -> None:
    ledger = Ledger(BLOCK)
    ledger.step(Output().new("r", PROMPT, blocks=[7, 3], scheduled=8, params=PARAMS))
    assert ledger.step(Output()) == StepWork()
    resumed = Output().more("r", computed=4, scheduled=4, blocks=[20, 21], resumed=True)
    assert ledger.step(resumed) == StepWork()
    last = Output().more("r", computed=8, scheduled=2, blocks=[22])
    assert ledger.step(last) == whole((20, 21, 22))


def test_a_resumed_prompt_that_is_told_as_new_is_the_same_request() -> None:
    ledger = Ledger(BLOCK)
    ledger.step(Output().new("r", PROMPT, blocks=[7, 3], scheduled=8, params=PARAMS))
    again = Output().new("r", PROMPT, blocks=[20, 21], scheduled=8, params=PARAMS)
    assert ledger.step(again) == StepWork()
    last = Output().more("r", computed=8, scheduled=2, blocks=[22])
    assert ledger.step(last) == whole((20, 21, 22))
    assert ledger.open == 1


@pytest.mark.parametrize("as_new", [False, True])
def test_a_prompt_is_handed_over_once_whatever_happens_afterwards(as_new: bool) -> None:
    ledger = Ledger(BLOCK)
    ledger.step(Output().new("r", PROMPT, blocks=[7, 3, 9], scheduled=10, params=PARAMS))
    output = Output()
    if as_new:
        output.new("r", PROMPT, blocks=[20, 21, 22], scheduled=10, params=PARAMS)
    else:
        output.more("r", computed=0, scheduled=10, blocks=[20, 21, 22], resumed=True)
    assert ledger.step(output) == StepWork()


def test_two_requests_in_one_step_are_kept_apart() -> None:
    ledger = Ledger(BLOCK)
    other = Destination("node-2", 6000, Grant("b2", "inc", 9))
    step = ledger.step(
        Output()
        .new("r", PROMPT, blocks=[7, 3, 9], scheduled=10, params=PARAMS)
        .new("s", [5, 6], blocks=[4], scheduled=2, params=params_for(other))
    )
    assert step.extractions == (
        Extraction("r", NODE, 10, 109, prompt_digest(PROMPT), (7, 3, 9)),
        Extraction("s", other, 2, 6, prompt_digest([5, 6]), (4,)),
    )


@pytest.mark.parametrize(
    "params", [None, {}, {"do_remote_decode": True, "remote_host": "x", "remote_port": 1}]
)
def test_requests_of_others_are_left_alone(params: dict[str, object] | None) -> None:
    ledger = Ledger(BLOCK)
    ledger.step(Output().new("r", PROMPT, blocks=[7, 3], scheduled=8, params=params))
    assert ledger.open == 0
    last = Output().more("r", computed=8, scheduled=2, blocks=[9])
    assert ledger.step(last) == StepWork()
    for status in ("FINISHED_ABORTED", "FINISHED_LENGTH_CAPPED"):
        ledger.finish(finished("r", status, params))
    assert ledger.step(Output()) == StepWork()


def test_pd_14_a_prompt_that_is_aborted_half_way_is_withdrawn_with_the_next_step() -> None:
    ledger = Ledger(BLOCK)
    ledger.step(Output().new("r", PROMPT, blocks=[7], scheduled=4, params=PARAMS))
    ledger.finish(finished("r", "FINISHED_ABORTED", PARAMS))
    reason = "vLLM ended the request (FINISHED_ABORTED) before its prompt was computed"
    assert ledger.step(Output()) == StepWork(withdrawals=(Withdrawal("r", NODE, reason),))
    assert ledger.step(Output()) == StepWork()
    assert ledger.open == 0


def test_pd_14_a_request_that_ends_while_it_waits_is_withdrawn() -> None:
    ledger = Ledger(BLOCK)
    ledger.finish(finished("r", "FINISHED_ABORTED", PARAMS))
    reason = "vLLM ended the request (FINISHED_ABORTED)"
    assert ledger.step(Output()) == StepWork(withdrawals=(Withdrawal("r", NODE, reason),))


def test_an_abort_after_the_hand_over_withdraws_what_may_be_on_its_way() -> None:
    ledger = Ledger(BLOCK)
    ledger.step(Output().new("r", PROMPT, blocks=[7, 3, 9], scheduled=10, params=PARAMS))
    ledger.finish(finished("r", "FINISHED_ABORTED"))
    reason = "vLLM ended the request (FINISHED_ABORTED)"
    gone = Withdrawal("r", NODE, reason, extracted=True)
    assert ledger.step(Output()) == StepWork(withdrawals=(gone,))


def test_the_prompt_of_embeddings_is_refused_with_the_reason() -> None:
    ledger = Ledger(BLOCK)
    step = ledger.step(Output().new("r", None, blocks=[7], scheduled=4, params=PARAMS))
    assert [item.reason for item in step.withdrawals] == [
        "its prompt is embeddings; a decode node takes token ids only"
    ]


def test_a_destination_that_cannot_be_read_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    ledger = Ledger(BLOCK)
    params = {**PARAMS, "tilert_ctrl_port": "5556"}
    ledger.step(Output().new("r", PROMPT, blocks=[7], scheduled=4, params=params))
    assert ledger.open == 0
    assert "kv_transfer_params.tilert_ctrl_port is '5556'" in caplog.text


def test_a_steps_work_travels_to_other_processes() -> None:
    work = whole((1, 2, 3))
    assert pickle.loads(pickle.dumps(work)) == work


turns = st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(0, 3), st.integers(1, 12)))
"""Preempted first?; told of as new?; blocks of a prefix hit; tokens that are computed."""


@given(st.lists(st.integers(0, 9), min_size=1, max_size=30), turns)
def test_any_schedule_hands_a_prompt_over_once_with_its_last_blocks(
    prompt: list[int], schedule: list[tuple[bool, bool, int, int]]
) -> None:
    """Chunks, hits, preemption and resumption in either form: the table at the end counts."""
    ledger, fresh = Ledger(BLOCK), iter(range(10_000))
    table, computed, found = list[int](), 0, list[Extraction]()
    for turn, (preempted, as_new, hit, tokens) in enumerate([*schedule, (False, False, 0, 30)]):
        if turn == 0 or preempted:
            table.clear()
            computed = min(hit, (len(prompt) - 1) // BLOCK) * BLOCK
        tokens = min(tokens, len(prompt) - computed)
        added = [next(fresh) for _ in range(-(-(computed + tokens) // BLOCK) - len(table))]
        table += added
        if turn == 0 or (preempted and as_new):
            output = Output().new(
                "r",
                prompt,
                blocks=list(table),
                computed=computed,
                scheduled=tokens,
                params=PARAMS,
            )
        else:
            output = Output().more(
                "r", computed=computed, scheduled=tokens, blocks=added or None, resumed=preempted
            )
        found += ledger.step(output).extractions
        computed += tokens
        if computed == len(prompt):
            break
    digest = prompt_digest(prompt)
    assert found == [Extraction("r", NODE, len(prompt), prompt[-1], digest, tuple(table))]
