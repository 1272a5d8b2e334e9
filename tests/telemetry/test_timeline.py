from __future__ import annotations

import pytest

from tests.telemetry.played import Clock, played, whole
from tilert_stream.events import Finished, TokenBatch
from tilert_stream.lifecycle import State
from tilert_stream.telemetry.histogram import GAP_BOUNDS
from tilert_stream.telemetry.record import RequestRecord, Tally
from tilert_stream.telemetry.timeline import Timeline, phase_of
from tilert_stream.testing import make_scope


def test_a_whole_request_is_divided_without_a_rest() -> None:
    with played() as request:
        whole(request)
        timeline = Timeline.of(request.scope)
    assert timeline.milliseconds() == {
        "queue": 500.0,
        "prefill": 250.0,
        "first_token": 750.0,
        "kv_import": 125.0,
        "decode": 875.0,
        "total": 2000.0,
    }
    assert list(timeline.milliseconds()) == [
        *("queue", "prefill", "first_token", "kv_import", "decode", "total")
    ]
    assert timeline.time_per_output_token == 0.875 / 6
    assert timeline.server_timing() == (
        "queue;dur=500, prefill;dur=250, first_token;dur=750, kv_import;dur=125, decode;dur=875,"
        " total;dur=2000"
    )


def test_times_are_told_to_the_microsecond() -> None:
    with played(begun=0.0) as request:
        request.move(0.0012345678, State.RESERVED)
        timeline = Timeline.of(request.scope, now=0.5)
    assert timeline.milliseconds() == {"queue": 1.235, "total": 500.0}


def test_a_request_that_runs_ends_now() -> None:
    with played() as request:
        request.move(101.0, State.RESERVED)
        assert Timeline.of(request.scope, now=103.5).total == 3.5
        request.move(104.0, State.CANCELLED)
        assert Timeline.of(request.scope, now=109.0).total == 4.0


def test_parts_that_a_request_did_not_come_to_are_left_out() -> None:
    with played() as request:
        request.move(101.0, State.FAILED)
        timeline = Timeline.of(request.scope)
    assert timeline.milliseconds() == {"total": 1000.0}
    assert timeline.time_per_output_token is None


def test_without_an_import_prefill_ends_with_the_first_token() -> None:
    with played() as request:
        request.move(100.5, State.PREFILLING)
        request.tokens(100.75, 1)
        request.move(101.0, State.DONE)
        timeline = Timeline.of(request.scope)
    assert timeline.queue == 0.5
    assert timeline.prefill == 0.25
    assert timeline.kv_import is None
    assert timeline.decode == 0.0
    assert timeline.time_per_output_token is None


def test_without_a_record_there_are_states_only() -> None:
    with make_scope() as scope:
        scope.lifecycle.move(State.RESERVED)
        timeline = Timeline.of(scope, now=0.0)
    assert timeline.tokens == 0
    assert timeline.first_token is None
    assert timeline.queue is not None


@pytest.mark.parametrize("end", [State.DONE, State.FAILED, State.CANCELLED])
@pytest.mark.parametrize("state", [State.RESERVED, State.PREFILLING, State.DECODING])
def test_the_phase_of_a_request_is_where_it_was_before_its_end(state: State, end: State) -> None:
    with played() as request:
        request.move(101.0, state)
        assert phase_of(request.scope) == state.value
        request.move(102.0, end)
        assert phase_of(request.scope) == state.value


def test_a_request_that_ends_in_the_queue_was_queued() -> None:
    with played() as request:
        request.move(101.0, State.CANCELLED)
        assert phase_of(request.scope) == "queued"


# --- the tally of its tokens ------------------------------------------------------------------


def gaps(tally: Tally) -> dict[float, int]:
    """Counts by their upper bound."""
    bounds = (*GAP_BOUNDS, float("inf"))
    return {b: n for b, n in zip(bounds, tally.gaps, strict=True) if n}


def test_tokens_of_a_wake_share_the_time_since_the_last() -> None:
    clock = Clock(10.0)
    tally = Tally(clock)
    tally.note([TokenBatch((1,))])
    clock.now = 10.015625
    tally.note([TokenBatch((1, 2)), TokenBatch((3, 4))])  # 1/256 s each
    clock.now = 10.265625
    tally.note([TokenBatch((5,)), Finished("stop")])  # 250 ms
    assert (tally.count, tally.first, tally.last) == (6, 10.0, 10.265625)
    assert gaps(tally) == {0.004: 4, 0.5: 1}
    assert sum(tally.gaps) == tally.count - 1


def test_tokens_beside_the_first_took_no_time() -> None:
    tally = Tally(Clock(10.0))
    tally.note([TokenBatch((1,)), TokenBatch((2, 3))])
    assert tally.count == 3
    assert gaps(tally) == {GAP_BOUNDS[0]: 2}


def test_a_wake_without_tokens_is_none() -> None:
    clock = Clock(10.0)
    tally = Tally(clock)
    tally.note([Finished("stop")])
    tally.note([TokenBatch(())])
    assert tally.count == 0
    tally.note([TokenBatch((1,))])
    clock.now = 12.0
    tally.note([])
    assert (tally.first, tally.last) == (10.0, 10.0)


def test_times_above_every_bound_are_counted() -> None:
    clock = Clock(0.0)
    tally = Tally(clock)
    tally.note([TokenBatch((1,))])
    clock.now = 3600.0
    tally.note([TokenBatch((2,))])
    assert gaps(tally) == {float("inf"): 1}


def test_an_answer_has_the_tokens_that_its_usage_says() -> None:
    record = RequestRecord()
    record.tokens.note([TokenBatch((1, 2, 3))])
    assert record.answer_tokens == 3
    record.completion_tokens = 2  # a stop string ended it before the third
    assert record.answer_tokens == 2
