"""The server does what its description says, whatever is sent to it."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable

import pytest

from tests.openapi_fuzz.conftest import Exchange, Run
from tests.openapi_fuzz.foretold import FORETOLD, foretold

pytestmark = pytest.mark.openapi_fuzz

OPERATIONS = 7
EXAMPLES = 2000


def test_every_check_passes(run: Run) -> None:
    assert run.summary["failures"] == [], run.output[-8000:]
    assert run.summary["errors"] == []
    assert (run.returncode, run.summary["complete"]) == (0, True), run.output[-4000:]


def test_a_valid_request_is_refused_only_for_what_no_schema_can_say(run: Run) -> None:
    messages = [message(each) for each in run.valid(400)]
    assert [each for each in messages if foretold(each) is None] == [], run.summary["seed"]


def test_valid_requests_of_every_operation_are_served(run: Run) -> None:
    """A run in which all is refused would prove nothing."""
    assert len({each.operation for each in run.valid(200)}) == OPERATIONS
    assert len(run.valid(200)) > 2 * len(run.valid(400))


def test_enough_has_been_tried(
    run: Run, record_property: Callable[[str, object], None], capsys: pytest.CaptureFixture[str]
) -> None:
    generated = run.summary["test_cases"]["generated"]
    with capsys.disabled():
        sys.stdout.write(f"\nseed {run.summary['seed']}: {generated} examples\n{counts(run)}\n")
    record_property("seed", run.summary["seed"])
    record_property("examples", generated)
    assert run.summary["operations"]["tested"] == OPERATIONS
    assert generated >= EXAMPLES


def counts(run: Run) -> str:
    """By status; of the valid that are refused, by reason."""
    statuses = Counter((each.valid, each.status) for each in run.exchanges)
    found = (foretold(message(each)) for each in run.valid(400))
    reasons = Counter(each.why for each in found if each is not None)
    return "\n".join(
        (
            *(
                f"{'valid' if valid else 'invalid'}, {status}: {count}"
                for (valid, status), count in sorted(statuses.items(), reverse=True)
            ),
            *(f"valid, 400 for {each.why!r}: {reasons[each.why]}" for each in FORETOLD),
        )
    )


def message(refused: Exchange) -> str:
    answer: dict[str, dict[str, str]] = json.loads(refused.content)
    return answer["error"]["message"]
