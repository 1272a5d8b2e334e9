"""``docs/conformance.md`` lists the checks as the code has them."""

from __future__ import annotations

from pathlib import Path

from tilert_stream.conformance import CHECKS

PAGE = Path(__file__).parents[2].joinpath("docs", "conformance.md").read_text(encoding="utf-8")


def test_the_page_lists_every_check_and_no_other() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| `") and "." in line[:24]]
    assert rows == [f"| `{c.id}` | {c.severity} | {c.shows} | {c.why} |" for c in CHECKS]
