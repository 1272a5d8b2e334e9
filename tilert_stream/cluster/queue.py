"""A router's line for decode slots: bounded, first come first served, and only its head asks.

In: requests for which no node had a slot. Out: what the head is given. The decode nodes have lines
of their own, in which each router stands once: several routers take turns.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, TypeVar

from anyio import Event, move_on_after
from anyio.lowlevel import checkpoint

from ..errors import Busy

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ("Queue",)

T = TypeVar("T")


class Queue:
    """Who waits, in order of arrival. Belongs to the event loop's thread.

    :param timeout: seconds that a request waits, at the head included; 0: nobody may wait.
    :param max_waiting: how many may stand in line.
    """

    def __init__(self, *, timeout: float = 30, max_waiting: int = 256) -> None:
        self.timeout = timeout
        self._max_waiting = max_waiting
        self._line: deque[Event] = deque()

    @property
    def waiting(self) -> int:
        """How many stand in line."""
        return len(self._line)

    async def wait(self, ask: Callable[[], Awaitable[T]]) -> T:
        """What ``ask`` gives, called when all who came before have left. Always a checkpoint.

        :raises ~tilert_stream.errors.Busy: the line is full, or the time was up before.
        """
        turn = self._stand_in_line()
        try:
            with move_on_after(self.timeout):
                await checkpoint()
                await turn.wait()
                return await ask()
        finally:
            self._step_out(turn)
        raise Busy(
            f"no decode slot came free within {self.timeout:g} s; try again later", retry_after=1
        )

    def _stand_in_line(self) -> Event:
        if len(self._line) >= self._max_waiting:
            raise Busy(
                f"{len(self._line)} requests already wait for a decode slot"
                f" (max_queue is {self._max_waiting}); try again later",
                retry_after=2,
            )
        turn = Event()
        self._line.append(turn)
        self._call_head()
        return turn

    def _step_out(self, turn: Event) -> None:
        self._line.remove(turn)
        self._call_head()

    def _call_head(self) -> None:
        if self._line:
            self._line[0].set()
