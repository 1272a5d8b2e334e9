"""A door that any thread opens once, for every task that waits at it.

In: ``set``, from any thread. Out: ``wait`` returns, in whatever event loop.
"""

from __future__ import annotations

import threading

from tilert_stream.completion import Completion

__all__ = ("Latch",)


class Latch:
    """Set once by any thread, awaited by any number of tasks in any event loop."""

    __slots__ = ("_lock", "_set", "_waiting")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._set = False
        self._waiting: list[Completion[None]] = []

    def set(self) -> None:
        """Let everybody go on. From any thread."""
        with self._lock:
            self._set = True
            waiting, self._waiting = self._waiting, []
        for completion in waiting:
            completion.set(None)

    async def wait(self) -> None:
        """Return once it is set. Always a checkpoint."""
        completion = Completion[None]()
        with self._lock:
            if self._set:
                completion.set(None)
            else:
                self._waiting.append(completion)
        try:
            await completion.wait()
        finally:
            with self._lock:
                if completion in self._waiting:
                    self._waiting.remove(completion)
