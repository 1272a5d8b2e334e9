"""A check, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from .session import Session

    Play = Callable[["Session"], Awaitable[str | None]]

__all__ = ("Check", "Result", "Severity", "Theme", "Verdict")


class Severity(StrEnum):
    """How bad a failure is."""

    MUST = "must"
    """Clients break, or see wrong data."""
    SHOULD = "should"
    """Some clients, proxies or operators suffer."""
    MAY = "may"
    """An extension that many servers have."""


class Verdict(StrEnum):
    """What a check found."""

    PASS = "pass"  # noqa: S105 - a verdict
    FAIL = "fail"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that the wire should show."""

    id: str
    """``theme.name``."""
    severity: Severity
    shows: str
    why: str
    """The specification that says so, or the client that breaks otherwise."""
    needs: str
    """``chat``, ``completions``, ``answers`` (either) or ``nothing``."""
    play: Play
    """Sends requests; returns a remark or None; raises ``Failed`` or ``Skipped``."""


@dataclass(frozen=True, slots=True)
class Result:
    """A check's verdict."""

    check: Check
    verdict: Verdict
    reason: str = ""
    """Why it failed or was skipped, or a remark."""
    evidence: str = ""
    """The request and the bytes around the fault, cut."""
    seconds: float = 0.0
    requests: int = 0


class Theme:
    """The checks of one file, in the order they are written."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.checks: list[Check] = []

    def check(
        self, name: str, severity: Severity, shows: str, why: str, *, needs: str = "answers"
    ) -> Callable[[Play], Play]:
        """Add the decorated function."""

        def add(play: Play) -> Play:
            check = Check(f"{self.name}.{name}", severity, shows, why, needs, play)
            self.checks.append(check)
            return play

        return add
