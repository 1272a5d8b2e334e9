"""What a decode node says of a request when it is over."""

from __future__ import annotations

import json

import pytest

from tilert_engine.accounting import Ledger
from tilert_stream.events import Finished, Limits
from tilert_stream.stages.lines import EncodeLines, EncodeTokens
from tilert_stream.testing import make_scope

SPANS = ("wire_wait", "inject", "decode")
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
    assert {name: value for name, value in timing.items() if name not in SPANS} == {
        "finish_reason": "length",
        "forwards": 3,
        "overrun": 0,
        "mtp_verify_calls": 2,
        "mtp_accept_mean": 1.5,
    }


@pytest.mark.parametrize("factory", FACTORIES)
def test_an_engine_that_counts_nothing_says_nothing(
    factory: type[EncodeLines | EncodeTokens],
) -> None:
    assert tuple(last_words(factory, Finished("length"))) == SPANS
