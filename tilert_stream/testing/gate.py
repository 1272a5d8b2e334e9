"""A place where a test holds a thread until it has looked around."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from tilert_stream.completion import Completion

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ("Gate",)


class Gate:
    """Made in the test's event loop; ``Gate.pass_through`` is a hook for a ``Script``.

    The gate is closed at first. Leaving the ``with`` block opens it, so that no failing test leaves
    a thread behind.
    """

    def __init__(self) -> None:
        self._open = threading.Event()
        self._arrived = Completion[int]()

    def pass_through(self, number: int) -> None:
        """Wait until the gate is open. Called on the engine's thread."""
        self._arrived.set(number)
        self._open.wait()

    async def arrival(self) -> int:
        """Wait until the thread stands at the gate for the first time; the hook's number."""
        return await self._arrived.wait()

    def open(self) -> None:
        """Let everybody through, now and later."""
        self._open.set()

    def __enter__(self) -> Gate:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.open()
