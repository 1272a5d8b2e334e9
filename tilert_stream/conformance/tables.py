"""A report for people: results in, a table and the evidence of each failure on a terminal out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.console import Group
from rich.table import Table
from rich.text import Text

from .check import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import RenderableType

    from .check import Check
    from .report import Report

__all__ = ("checks_table", "report_table")

_STYLE: Final = {Verdict.PASS: "green", Verdict.FAIL: "bold red", Verdict.SKIP: "yellow"}


def report_table(report: Report) -> RenderableType:
    """Every verdict, then what each failure rests on. Nothing of a server's words is markup."""
    table = Table(title=Text(f"{report.url}, model {report.model}"), title_justify="left")
    for column in ("check", "severity", "verdict", "what it found"):
        table.add_column(column, no_wrap=column != "what it found")
    for result in report.results:
        check = result.check
        verdict = Text(result.verdict, style=_STYLE[result.verdict])
        table.add_row(Text(check.id), Text(check.severity), verdict, Text(result.reason))
    parts: list[RenderableType] = [table]
    for result in report.failed():
        check = result.check
        parts += [
            Text(f"\n{check.id} ({check.severity}): {result.reason}", style="bold"),
            Text(f"wanted: {check.shows}\nwhy: {check.why}"),
            Text(result.evidence, style="dim"),
        ]
    counts = ", ".join(f"{report.count(verdict)} {verdict}" for verdict in Verdict)
    parts.append(Text(f"\n{counts}; {len(report.broken())} of the failures are musts"))
    return Group(*parts)


def checks_table(checks: Iterable[Check]) -> RenderableType:
    """What each check wants, and why."""
    table = Table()
    for column in ("check", "severity", "what the wire should show", "why"):
        table.add_column(column)
    for check in checks:
        table.add_row(Text(check.id), Text(check.severity), Text(check.shows), Text(check.why))
    return table
