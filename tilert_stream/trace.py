"""Hooks: when each step of a request starts, completes or fails. Free where none is set."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

__all__ = ("Span", "Trace", "TraceEvent", "mark")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """One mark on a request's timeline."""

    request_id: str
    name: str
    """The stage's name, or ``request`` for the whole."""
    phase: Literal["started", "complete", "failed"]
    at: float
    """Seconds on ``time.perf_counter``."""
    error: BaseException | None = None


Trace: TypeAlias = "Callable[[TraceEvent], None]"


def mark(
    trace: Trace | None,
    request_id: str,
    name: str,
    phase: Literal["started", "complete", "failed"],
    error: BaseException | None = None,
) -> None:
    """Report one event to ``trace``; nothing happens if it is None.

    A hook that raises is logged, and stops nothing: it only looks on.
    """
    if trace is None:
        return
    try:
        trace(TraceEvent(request_id, name, phase, time.perf_counter(), error))
    except Exception:
        logger.exception("a trace hook failed at %s %s", name, phase)


class Span:
    """Reports the start and the end of a block to ``trace``; does nothing if it is None."""

    __slots__ = ("_name", "_request_id", "_trace")

    def __init__(self, trace: Trace | None, request_id: str, name: str) -> None:
        self._trace = trace
        self._request_id = request_id
        self._name = name

    def __enter__(self) -> None:
        mark(self._trace, self._request_id, self._name, "started")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        phase: Literal["complete", "failed"] = "complete" if error is None else "failed"
        mark(self._trace, self._request_id, self._name, phase, error)
