"""The official SDK's own tests of its API pass against our server, but for what must differ."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.openai_sdk.conftest import Results
from tests.openai_sdk.differences import DIFFERENCES, MODULES, Difference, difference

pytestmark = pytest.mark.openai_sdk


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("client", ["loose", "strict", "aiohttp"])
def test_what_is_served_passes(results: Results, module: str, client: str) -> None:
    def chosen(test: str) -> bool:
        ours = test.startswith(f"{module}::") and f"[{client}]" in test
        return ours and difference(test) is None

    assert {test: why for test, why in results.failed.items() if chosen(test)} == {}
    assert any(chosen(test) for test in results.passed)


@pytest.mark.parametrize("expected", DIFFERENCES, ids=lambda each: each.name)
def test_what_differs_differs_as_it_is_told(results: Results, expected: Difference) -> None:
    assert [test for test in results.passed if difference(test) is expected] == []
    answers = [why for test, why in results.failed.items() if difference(test) is expected]
    assert answers
    assert [each for each in answers if expected.answer not in each] == []


def test_all_of_them_have_run(
    results: Results, record_property: Callable[[str, object], None]
) -> None:
    """A test that is skipped, or is not collected, proves nothing."""
    record_property("passed", len(results.passed))
    record_property("differ", len(results.failed))
    assert (len(results.passed), len(results.failed)) == (115, 100)
