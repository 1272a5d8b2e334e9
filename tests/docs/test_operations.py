"""``docs/operations.md`` knows every error and every time limit, with the code's own values."""

from __future__ import annotations

import importlib
import inspect
import re
from dataclasses import fields
from pathlib import Path

import pytest

from tilert_stream.config import ServeConfig
from tilert_stream.errors import TilertStreamError
from tilert_stream.time_limits import TimeLimits

PAGE = Path(__file__).parents[2].joinpath("docs", "operations.md").read_text(encoding="utf-8")
MODULES = (
    "tilert_stream.errors",
    "tilert_stream.cluster.errors",
    "tilert_stream.http.client.errors",
    "tilert_stream.http.errors",
    "tilert_transports.errors",
    "tilert_transports.control.errors",
)
ERRORS = [
    error
    for module in MODULES
    for _, error in inspect.getmembers(importlib.import_module(module), inspect.isclass)
    if issubclass(error, TilertStreamError) and error.__module__ == module
]
SHARED = {"kv_transfer_failed"}
"""Codes that several errors share, each with its own advice."""
LIMITS = [field.name for field in fields(ServeConfig) if field.name.endswith("_timeout")]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.__name__)
def test_every_error_has_its_row(error: type[TilertStreamError]) -> None:
    (row,) = (
        row for row in PAGE.splitlines() if re.match(rf"\| .*`{error.code}`.* \| .{{1,3}} \|", row)
    )
    _, _, status, retry, text, _ = (cell.strip() for cell in row.split("|"))
    assert status in (str(error.status), "–")
    assert retry in ("yes" if error.retryable else "no", "–") or error.code in SHARED
    assert text


@pytest.mark.parametrize("name", [name for name in LIMITS if name != "drain_timeout"])
def test_every_time_limit_has_its_row(name: str) -> None:
    (row,) = (row for row in PAGE.splitlines() if re.match(rf"\| `{name}` \| [^|]+ \| .*→", row))
    default: float = getattr(ServeConfig(), name)
    assert row.split("|")[2].strip() in (f"{default:g} s", "none")


def test_options_and_code_have_the_same_defaults() -> None:
    for field in fields(TimeLimits):
        assert getattr(ServeConfig(), f"{field.name}_timeout") == getattr(TimeLimits(), field.name)
