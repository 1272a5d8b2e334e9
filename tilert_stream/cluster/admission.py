"""The line for decode slots: bounded, first come first served, one event a grant.

In: ``acquire`` from request tasks. Out: ``Ticket``, which any thread may free, so that a slot goes
to the next in line when the engine is done with it, not when a slow client has read its answer.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from anyio import move_on_after

from tilert_stream.completion import Completion
from tilert_stream.errors import Busy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ("Admission", "AdmissionStatistics", "Ticket")


@dataclass(frozen=True, slots=True)
class AdmissionStatistics:
    """Slots and the line before them."""

    slots: int
    busy: int
    waiting: int


class Ticket:
    """A slot, until it is freed."""

    __slots__ = ("_free", "slot")

    def __init__(self, slot: int, free: Callable[[int], None]) -> None:
        self.slot = slot
        self._free = [free]

    def free(self) -> None:
        """Give the slot to the next in line. From any thread; idempotent."""
        try:
            free = self._free.pop()  # atomic: the engine's thread and the lease may both come
        except IndexError:
            return
        free(self.slot)


class Admission:
    """Hands out the slots of one decode node.

    :param slots: their numbers.
    :param timeout: seconds that a request waits; 0 refuses at once.
    :param max_waiting: how many may stand in line.
    """

    def __init__(
        self, slots: Iterable[int], *, timeout: float = 30, max_waiting: int = 256
    ) -> None:
        self._free = deque(slots)
        self._slots = len(self._free)
        self._timeout = timeout
        self._max_waiting = max_waiting
        self._line: deque[Completion[Ticket]] = deque()
        self._lock = threading.Lock()

    async def acquire(self, within: float | None = None) -> Ticket:
        """A slot, as soon as all who came before have had theirs. Always a checkpoint.

        :param within: seconds that this request waits; None: as long as any other.
        :raises ~tilert_stream.errors.Busy: the line is full, or none came free in time.
        """
        seconds = self._timeout if within is None else within
        turn = self._stand_in_line(seconds)
        try:
            with move_on_after(None if turn.done else seconds):
                return await turn.wait()
        except BaseException:
            if not self._step_out(turn):
                turn.value.free()
            raise
        if not self._step_out(turn):
            return turn.value  # granted in the moment the time was up
        raise Busy(
            f"all {self._slots} decode slots stayed busy for {seconds:g} s; try again later",
            retry_after=1,
        )

    def _stand_in_line(self, seconds: float) -> Completion[Ticket]:
        turn = Completion[Ticket]()
        with self._lock:
            if self._free:
                turn.set(Ticket(self._free.popleft(), self._pass_on))
            elif seconds <= 0:
                raise Busy(
                    f"all {self._slots} decode slots are busy; try again later", retry_after=1
                )
            elif len(self._line) >= self._max_waiting:
                raise Busy(
                    f"{len(self._line)} requests already wait for {self._slots} decode slots"
                    f" (max_queue is {self._max_waiting}); try again later",
                    retry_after=2,
                )
            else:
                self._line.append(turn)
        return turn

    def _step_out(self, turn: Completion[Ticket]) -> bool:
        """Leave the line; False if a slot has been granted already."""
        with self._lock:
            if turn not in self._line:
                return False
            self._line.remove(turn)
            return True

    def _pass_on(self, slot: int) -> None:
        with self._lock:
            if self._line:
                self._line.popleft().set(Ticket(slot, self._pass_on))
            else:
                self._free.append(slot)

    def statistics(self) -> AdmissionStatistics:
        """How many slots are busy, how many requests wait."""
        with self._lock:
            return AdmissionStatistics(self._slots, self._slots - len(self._free), len(self._line))
