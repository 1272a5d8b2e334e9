"""A place where a test holds a thread until it has looked around."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, ClassVar
from weakref import WeakSet

from tilert_stream.completion import Completion

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ("Gate",)


class Gate:
    """Made in the test's event loop; ``Gate.pass_through`` is a hook for a ``Script``.

    The gate is closed at first. Leaving the ``with`` block opens it, so that no failing test leaves
    a thread behind.
    """

    _made: ClassVar[WeakSet[Gate]] = WeakSet()

    def __init__(self) -> None:
        self._made.add(self)
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

    @classmethod
    def open_all(cls) -> None:
        """Let everybody through everywhere, so that a failed test can end what it has started.

        What is inside of a gate's ``with`` block ends before the gate is left, and may have to wait
        for the thread that stands there.
        """
        for gate in list(cls._made):
            gate.open()

    def __enter__(self) -> Gate:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.open()
