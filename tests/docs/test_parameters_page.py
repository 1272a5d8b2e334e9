from __future__ import annotations

from pathlib import Path

from tests.docs.parameters_page import page

PAGE = Path(__file__).parents[2] / "docs" / "parameters.md"


def test_the_page_is_what_the_code_declares() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), (
        "write it anew: python -m tests.docs.parameters_page > docs/parameters.md"
    )
