"""A lane with a thread of its own, for transports that move bytes by blocking calls.

In: transfers. Out: their outcomes, one after another. What really moves the bytes is a ``Mover``,
called on this thread only, except for its two stops. A thread a peer: a peer that hangs holds up
nobody else, and the event loop stays free for tokens.
"""

from __future__ import annotations

import logging
import threading
from queue import SimpleQueue
from time import perf_counter
from typing import TYPE_CHECKING, Protocol

from .errors import TransferFailed, TransportError
from .lane import Lane, Transfer

if TYPE_CHECKING:
    from collections.abc import Callable

    from tilert_stream.completion import Completion

__all__ = ("Mover", "ThreadLane")

logger = logging.getLogger(__name__)


class Mover(Protocol):
    """Moves bytes to one peer. Blocking; called on the lane's thread unless it says otherwise."""

    def open(self) -> None:
        """Reach the peer, and prove that it is the one meant.

        :raises TransportError: as ``Transport.connect``.
        """
        ...

    def move(self, transfer: Transfer) -> None:
        """Write ``transfer``. Returns, or raises, only when no byte of it can land any more.

        :raises TransportError: it failed; ``settled`` False if bytes may still land after all.
        """
        ...

    def stop(self) -> None:
        """Make the running ``move`` return soon: it has been given up. From any thread."""
        ...

    def abandon(self) -> None:
        """Make the running call return at once, settled or not. From any thread, for good."""
        ...

    def close(self) -> None:
        """Let go of everything. The last call."""
        ...


class ThreadLane(Lane):
    """Its thread runs until ``shut``.

    :param name: the thread's name.
    """

    def __init__(self, name: str, mover: Mover) -> None:
        super().__init__()
        self._mover = mover
        self._queue: SimpleQueue[Transfer | Callable[[], None] | None] = SimpleQueue()
        self._running: Transfer | None = None
        # A daemon: a peer that never answers must not keep the process from ending.
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def _reach(self, done: Completion[None]) -> None:
        def reach() -> None:
            try:
                self._mover.open()
            except TransportError as error:
                done.fail(error)
            else:
                done.set(None)

        self._queue.put(reach)

    def _submit(self, transfer: Transfer) -> None:
        self._queue.put(transfer)

    def _stop(self, transfer: Transfer) -> None:
        if self._running is transfer:
            self._mover.stop()

    def _shut(self) -> None:
        self._mover.abandon()
        self._queue.put(None)

    def _run(self) -> None:
        while (task := self._queue.get()) is not None:
            if isinstance(task, Transfer):
                self._carry(task)
            else:
                task()
        self._mover.close()
        self.ended.set()

    def _carry(self, transfer: Transfer) -> None:
        with self._lock:
            skip = transfer.given_up
            if not skip:
                self._running = transfer
        begin = perf_counter()
        error = None if skip else self._attempt(transfer)
        seconds = perf_counter() - begin
        with self._lock:
            self._running = None
        self._finish(transfer, error, seconds)

    def _attempt(self, transfer: Transfer) -> TransportError | None:
        try:
            self._mover.move(transfer)
        except TransportError as error:
            return error
        except Exception as error:
            # The thread must live on: the other writes of this peer depend on it.
            logger.exception("a transfer failed in an unforeseen way")
            failed = TransferFailed(f"the write failed: {error!r}", settled=False)
            failed.__cause__ = error
            return failed
        return None
