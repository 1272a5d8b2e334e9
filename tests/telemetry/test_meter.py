"""What is counted of which request, and what a scrape makes of it."""

from __future__ import annotations

import pytest

from tests.telemetry.played import Played, played, whole
from tests.telemetry.scraped import Samples, families, samples
from tilert_stream.errors import (
    AuthenticationFailed,
    Cancelled,
    KVTimeout,
    TilertStreamError,
)
from tilert_stream.events import Finished, FinishReason, PromptUsage
from tilert_stream.lifecycle import State
from tilert_stream.telemetry.exposition import ReadingCollector, render
from tilert_stream.telemetry.histogram import Histogram
from tilert_stream.telemetry.meter import Meter
from tilert_stream.telemetry.metrics import METRICS, PREFIX, TTFT, Metric
from tilert_stream.telemetry.record import RequestRecord

OURS = "tilert_stream_"


def scrape(meter: Meter, *, vllm: bool = False, worker: str | None = None) -> bytes:
    collector = ReadingCollector(meter.reading(), model="small", vllm=vllm, worker=worker)
    return render(collector)


def ours(meter: Meter) -> Samples:
    """Every sample that is not 0, without the prefix."""
    found = samples(scrape(meter))
    return {name.removeprefix(OURS): value for name, value in found.items() if value}


def ended(meter: Meter, request: Played, outcome: Finished) -> None:
    meter.began(request.scope)
    meter.ended(request.scope, outcome)


def test_a_whole_request() -> None:
    meter = Meter()
    with played(record=RequestRecord(kv_bytes=4096)) as request:
        whole(request)
        request.scope.usage = PromptUsage(32, cached_tokens=16)
        ended(meter, request, Finished("length"))
    assert ours(meter) == {
        "time_to_first_token_seconds_bucket{le=1.0}": 1,
        "time_to_first_token_seconds_count": 1,
        "time_to_first_token_seconds_sum": 0.75,
        # Two tokens after 0.5 s, four after 0.375 s.
        "inter_token_latency_seconds_bucket{le=0.1}": 4,
        "inter_token_latency_seconds_bucket{le=0.5}": 6,
        "inter_token_latency_seconds_count": 6,
        "inter_token_latency_seconds_sum": 0.875,
        "time_per_output_token_seconds_bucket{le=0.2}": 1,
        "time_per_output_token_seconds_count": 1,
        "time_per_output_token_seconds_sum": 0.875 / 6,
        "request_duration_seconds_bucket{le=2.5}": 1,
        "request_duration_seconds_count": 1,
        "request_duration_seconds_sum": 2.0,
        "queue_seconds_bucket{le=0.5}": 1,
        "queue_seconds_count": 1,
        "queue_seconds_sum": 0.5,
        "prefill_seconds_bucket{le=0.25}": 1,
        "prefill_seconds_count": 1,
        "prefill_seconds_sum": 0.25,
        "kv_handoff_seconds_bucket{le=0.25}": 1,
        "kv_handoff_seconds_count": 1,
        "kv_handoff_seconds_sum": 0.125,
        "decode_seconds_bucket{le=1.0}": 1,
        "decode_seconds_count": 1,
        "decode_seconds_sum": 0.875,
        "request_prompt_tokens_bucket{le=50.0}": 1,
        "request_prompt_tokens_count": 1,
        "request_prompt_tokens_sum": 32,
        "request_generation_tokens_bucket{le=10.0}": 1,
        "request_generation_tokens_count": 1,
        "request_generation_tokens_sum": 7,
        "prompt_tokens_total": 32,
        "prompt_tokens_cached_total": 16,
        "generation_tokens_total": 7,
        "kv_handoff_bytes_total": 4096,
        "requests_finished_total{finish_reason=length}": 1,
    }


def test_requests_add_up() -> None:
    meter = Meter()
    for reason in ("stop", "stop", "tool_calls"):
        with played() as request:
            whole(request)
            ended(meter, request, Finished(reason))
    found = ours(meter)
    assert found["requests_finished_total{finish_reason=stop}"] == 2
    assert found["requests_finished_total{finish_reason=tool_calls}"] == 1
    assert found["generation_tokens_total"] == 21
    assert found["inter_token_latency_seconds_count"] == 18
    assert found["request_duration_seconds_sum"] == 6.0


def test_requests_wait_then_run_then_are_gone() -> None:
    meter = Meter()
    with played() as first, played() as second:
        meter.began(first.scope)
        meter.began(second.scope)
        assert ours(meter) == {"requests_waiting": 2}
        first.move(101.0, State.RESERVED)
        assert ours(meter) == {"requests_waiting": 1, "requests_running": 1}
        first.move(102.0, State.DONE)
        meter.ended(first.scope, Finished("stop"))
        second.move(102.0, State.CANCELLED)
        meter.ended(second.scope, Finished("cancelled", error=Cancelled("gone")))
    found = samples(scrape(meter))
    assert found[f"{OURS}requests_running"] == found[f"{OURS}requests_waiting"] == 0


@pytest.mark.parametrize("state", [State.RESERVED, State.PREFILLING, State.IMPORTING_KV])
def test_a_client_that_leaves_is_counted_by_phase(state: State) -> None:
    meter = Meter()
    with played() as request:
        request.move(101.0, state)
        request.move(102.0, State.CANCELLED)
        ended(meter, request, Finished("cancelled", error=Cancelled("gone")))
    found = ours(meter)
    assert found[f"requests_cancelled_total{{phase={state.value}}}"] == 1
    assert not any(name.startswith(("request_errors", "requests_finished")) for name in found)
    assert "request_duration_seconds_count" not in found


def test_a_failed_request_counts_its_code_its_times_and_its_tokens() -> None:
    meter = Meter()
    with played() as request:
        request.move(100.5, State.PREFILLING)
        request.move(100.75, State.IMPORTING_KV)
        request.tokens(100.75, 1)
        request.move(101.75, State.FAILED)
        ended(meter, request, Finished.failed(KVTimeout("it did not come")))
    found = ours(meter)
    assert found["request_errors_total{code=kv_timeout}"] == 1
    assert found["time_to_first_token_seconds_sum"] == 0.75
    assert found["generation_tokens_total"] == 1
    assert not any(
        name.startswith(("requests_", "request_duration", "decode_", "kv_handoff_s"))
        for name in found
    )


def test_the_code_of_an_error_is_its_classs_never_an_upstreams_words() -> None:
    class FromElsewhere(TilertStreamError):
        code = "upstream"

    error = FromElsewhere("no")
    error.__dict__["code"] = "whatever the node said"
    meter = Meter()
    meter.refused(RequestRecord(), error)
    assert ours(meter) == {"request_errors_total{code=upstream}": 1}


def test_refusals() -> None:
    meter = Meter()
    meter.refused(RequestRecord(), AuthenticationFailed("no"))
    meter.refused(RequestRecord(), Cancelled("left while it was read"))
    assert ours(meter) == {
        "request_errors_total{code=invalid_api_key}": 1,
        "requests_cancelled_total{phase=receiving}": 1,
    }


def test_a_hand_over_of_a_prefill_node() -> None:
    meter = Meter()
    meter.delivered(1000, 0.0625)
    meter.delivered(24, 0.0625)
    assert ours(meter) == {
        "kv_handoff_bytes_total": 1024,
        "kv_handoff_seconds_bucket{le=0.1}": 2,
        "kv_handoff_seconds_count": 2,
        "kv_handoff_seconds_sum": 0.125,
    }


@pytest.mark.parametrize(
    ("account", "calls", "accepted"),
    [
        ({"mtp_verify_calls": 4, "mtp_accept_mean": 2.5}, 4, 6),
        ({"mtp_verify_calls": 3, "mtp_accept_mean": 1.0}, 3, None),
        ({"mtp_verify_calls": 3, "mtp_accept_mean": None}, None, None),
        ({"forwards": 9}, None, None),
        (None, None, None),
    ],
)
def test_drafts_are_counted_where_an_engine_reports_them(
    account: dict[str, object] | None, calls: int | None, accepted: int | None
) -> None:
    meter = Meter()
    with played() as request:
        whole(request)
        ended(meter, request, Finished("stop", account=account))
    found = ours(meter)
    assert found.get("mtp_verify_calls_total") == calls
    assert found.get("mtp_accepted_tokens_total") == accepted


def test_a_reading_stands_still() -> None:
    meter = Meter()
    collector = ReadingCollector(meter.reading(), model="small")
    with played() as request:
        whole(request)
        ended(meter, request, Finished("stop"))
    assert not any(samples(render(collector)).values())


# --- the text --------------------------------------------------------------------------------


def test_a_scrape_has_every_metric_with_its_kind_and_help_from_the_start() -> None:
    found = families(scrape(Meter()))
    assert list(found) == [PREFIX + metric.name for metric in METRICS]
    for metric in METRICS:
        family = found[PREFIX + metric.name]
        assert (family.type, family.documentation) == (metric.kind, metric.help)
        if metric.label is None:
            assert family.samples
            assert all(sample.labels["model"] == "small" for sample in family.samples)


def test_vllms_names_stand_beside_ours_with_the_same_numbers() -> None:
    meter = Meter()
    with played() as request:
        whole(request)
        ended(meter, request, Finished("stop"))
    found = families(scrape(meter, vllm=True))
    aliased = [metric for metric in METRICS if metric.vllm is not None]
    assert list(found) == [PREFIX + m.name for m in METRICS] + [m.vllm for m in aliased]
    for metric in aliased:
        theirs, mine = found[str(metric.vllm)], found[PREFIX + metric.name]
        assert theirs.type == mine.type
        assert [s.value for s in theirs.samples] == [s.value for s in mine.samples]
        assert all(sample.labels["model_name"] == "small" for sample in theirs.samples)
        assert all("model" not in sample.labels for sample in theirs.samples)
    (success,) = found["vllm:request_success"].samples
    assert success.labels == {"model_name": "small", "finished_reason": "stop"}
    assert success.name == "vllm:request_success_total"


def test_processes_that_share_a_port_are_told_apart() -> None:
    found = families(scrape(Meter(), worker="4711", vllm=True))
    labels = [sample.labels for family in found.values() for sample in family.samples]
    assert labels
    assert all(label["worker"] == "4711" for label in labels)


def test_buckets_are_cumulative_and_end_with_all() -> None:
    meter = Meter()
    for seconds in (0.00005, 0.0001, 0.3, 9999.0):
        meter.delivered(1, seconds)
    text = scrape(meter)
    family = families(text)[f"{OURS}kv_handoff_seconds"]
    buckets = {s.labels["le"]: s.value for s in family.samples if s.name.endswith("_bucket")}
    assert list(buckets.values()) == sorted(buckets.values())
    assert (buckets["0.0001"], buckets["0.25"], buckets["0.5"], buckets["+Inf"]) == (2, 2, 3, 4)
    assert samples(text)[f"{OURS}kv_handoff_seconds_count"] == 4


@pytest.mark.parametrize("reason", ["stop", "length", "tool_calls", "content_filter"])
def test_every_finish_reason_has_a_sample_of_its_own(reason: FinishReason) -> None:
    meter = Meter()
    with played() as request:
        whole(request)
        ended(meter, request, Finished(reason))
    assert ours(meter)[f"requests_finished_total{{finish_reason={reason}}}"] == 1


def test_histograms_take_what_others_have_counted() -> None:
    histogram = Histogram((1.0, 2.0))
    histogram.observe(1.0)
    histogram.observe(1.5)
    histogram.add([1, 0, 2], 20.0)
    assert histogram.cumulative() == [2, 3, 5]
    assert histogram.sum == 22.5
    with pytest.raises(ValueError, match="zip"):
        histogram.add([1], 1.0)


def test_a_metric_is_equal_to_itself_alone() -> None:
    twin = Metric(TTFT.name, TTFT.kind, TTFT.help)
    assert twin != Metric(twin.name, twin.kind, twin.help)
    assert {twin: 1}[twin] == 1
    assert len(set(METRICS)) == len(METRICS)
