"""Hooks: when each step of a request starts, completes or fails. Free where none is set."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

__all__ = ("Span", "Trace", "TraceEvent")


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


class Span:
    """Reports the start and the end of a block to ``trace``; does nothing if it is None."""

    __slots__ = ("_name", "_request_id", "_trace")

    def __init__(self, trace: Trace | None, request_id: str, name: str) -> None:
        self._trace = trace
        self._request_id = request_id
        self._name = name

    def __enter__(self) -> None:
        if self._trace is not None:
            self._trace(TraceEvent(self._request_id, self._name, "started", time.perf_counter()))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._trace is not None:
            phase: Literal["complete", "failed"] = "complete" if error is None else "failed"
            now = time.perf_counter()
            self._trace(TraceEvent(self._request_id, self._name, phase, now, error))
