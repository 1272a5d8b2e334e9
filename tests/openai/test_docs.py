"""The tables of ``docs/openai.md`` are what the code declares."""

from __future__ import annotations

import re
from pathlib import Path

from tilert_stream.openai.encoding import dumps
from tilert_stream.openai.parameters import PARAMETERS

NAMES = {"chat": "chat", "completion": "completions"}
ROW = re.compile(r"^\| (`\w+` \| (?:both|chat|completions) \| .*) \|$", re.MULTILINE)
DOCS = Path(__file__).parents[2] / "docs" / "openai.md"


def test_tables() -> None:
    rows = ROW.findall(DOCS.read_text())
    declared: list[str] = []
    for answer in ("served", "inert", "refused"):
        for each in PARAMETERS:
            if each.answer != answer:
                continue
            names = [NAMES[endpoint] for endpoint in each.endpoints]
            where = "both" if len(names) > 1 else names[0]
            row = f"`{each.name}` | {where} | {each.note}"
            if answer == "refused":
                values = ", ".join(f"`{dumps(value).decode()}`" for value in each.no_effect)
                row += f" | {values or 'nothing'}"
            declared.append(row)
    assert rows == declared
