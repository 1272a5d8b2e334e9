"""What a decode node says of a request when it is over."""

from __future__ import annotations

import json

import pytest

from tilert_engine.accounting import Ledger
from tilert_stream.errors import Cancelled
from tilert_stream.events import Finished, FinishReason, Limits
from tilert_stream.lifecycle import State
from tilert_stream.stages.lines import EncodeLines, EncodeTokens
from tilert_stream.testing import make_scope

SPANS = ("wire_wait", "convert", "inject", "decode")
FACTORIES = [EncodeLines, EncodeTokens]


def last_words(factory: type[EncodeLines | EncodeTokens], outcome: Finished) -> dict[str, object]:
    with make_scope() as scope:
        (line,) = factory({})(scope).finish(outcome)
        assert isinstance(line, bytes)
        timing: dict[str, object] = json.loads(line)["timing_ms"]
        return timing


@pytest.mark.parametrize("factory", FACTORIES)
def test_the_engines_counts_ride_beside_the_times(
    factory: type[EncodeLines | EncodeTokens],
) -> None:
    ledger = Ledger(Limits(4), mtp=True)
    ledger.opened()
    outcome = ledger.take([1, 2, 3], [1, 2]).finished
    assert outcome is not None
    timing = last_words(factory, outcome)
    assert tuple(timing) == (
        *SPANS,
        *("finish_reason", "mtp_accept_mean", "mtp_verify_calls"),
        *("forwards", "overrun"),
    )
    assert {name: value for name, value in timing.items() if name not in SPANS} == {
        "finish_reason": "length",
        "forwards": 3,
        "overrun": 0,
        "mtp_verify_calls": 2,
        "mtp_accept_mean": 1.5,
    }


@pytest.mark.parametrize("factory", FACTORIES)
@pytest.mark.parametrize("reason", ["stop", "length"])
def test_a_request_that_was_never_decoded_says_how_it_ended(
    factory: type[EncodeLines | EncodeTokens], reason: FinishReason
) -> None:
    timing = last_words(factory, Finished(reason))
    assert tuple(timing) == (*SPANS, "finish_reason")
    assert timing["finish_reason"] == reason


def test_a_cancelled_request_says_so() -> None:
    outcome = Finished("cancelled", error=Cancelled("gone"), account={"finish_reason": "length"})
    assert last_words(EncodeLines, outcome)["finish_reason"] == "cancelled"


def test_the_spans_are_those_between_the_times() -> None:
    with make_scope() as scope:
        begun = scope.lifecycle.entered[State.QUEUED]
        times = {"landed": begun + 1, "converted": begun + 1.25, "imported": begun + 1.75}
        (line,) = EncodeLines(times)(scope).finish(Finished("length"))
        assert isinstance(line, bytes)
    timing = json.loads(line)["timing_ms"]
    assert [timing[name] for name in SPANS[:3]] == [1000, 250, 500]
