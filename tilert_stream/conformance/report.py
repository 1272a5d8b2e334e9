"""All results of a run, and what follows from them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from .check import Result, Severity, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ("Report",)

_RANK: Final = {Severity.MUST: 0, Severity.SHOULD: 1, Severity.MAY: 2}


@dataclass(slots=True)
class Report:
    """What a server was found to do."""

    url: str
    model: str | None = None
    results: list[Result] = field(default_factory=list[Result])

    def broken(self, least: Severity = Severity.MUST) -> list[Result]:
        """The failures that are at least so severe."""
        return [r for r in self.failed() if _RANK[r.check.severity] <= _RANK[least]]

    def failed(self) -> Iterable[Result]:
        """Every failure."""
        return (result for result in self.results if result.verdict is Verdict.FAIL)

    def count(self, verdict: Verdict) -> int:
        """How many checks ended so."""
        return sum(result.verdict is verdict for result in self.results)

    def of(self, check_id: str) -> Result:
        """One check's result.

        :raises KeyError: it was not played.
        """
        for result in self.results:
            if result.check.id == check_id:
                return result
        raise KeyError(check_id)
