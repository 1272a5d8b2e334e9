"""An outcome that is set once, by any thread, and awaited by one task.

For events that happen once a request: KV landed, slot granted, prompt computed. The end of a
token stream is no completion: it travels in the mailbox, with the last tokens.
"""

from __future__ import annotations

import threading
from typing import Generic, TypeVar, cast

from anyio.lowlevel import checkpoint

from .parking import make_parking

__all__ = ("Completion",)

T = TypeVar("T")


class Completion(Generic[T]):
    """Made in the awaiting task's event loop."""

    __slots__ = ("_done", "_error", "_lock", "_parking", "_value")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._parking = make_parking()
        self._done = False
        self._value: T | None = None
        self._error: Exception | None = None

    @property
    def done(self) -> bool:
        """Whether the outcome is known."""
        return self._done

    @property
    def value(self) -> T:
        """What ``set`` was given.

        :raises RuntimeError: there is no value.
        """
        if not self._done or self._error is not None:
            raise RuntimeError("this completion has no value")
        return cast("T", self._value)

    def set(self, value: T) -> bool:
        """Complete with ``value``. From any thread.

        :returns: False if an outcome was there already; it stays.
        """
        return self._settle(value, None)

    def fail(self, error: Exception) -> bool:
        """Complete with ``error``, which ``wait`` raises. From any thread.

        :returns: False if an outcome was there already; it stays.
        """
        return self._settle(None, error)

    def _settle(self, value: T | None, error: Exception | None) -> bool:
        with self._lock:
            if self._done:
                return False
            self._value, self._error = value, error
            self._done = True
        self._parking.unpark()
        return True

    async def wait(self) -> T:
        """The value, as soon as it is there. Always a checkpoint.

        :raises Exception: what ``fail`` was given.
        """
        slept = False
        while not self._done:
            await self._parking.park()
            slept = True
        if not slept:
            await checkpoint()
        if self._error is not None:
            raise self._error
        return cast("T", self._value)
