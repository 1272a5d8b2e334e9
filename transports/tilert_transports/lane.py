"""One peer's owner thread: writes go in from the event loop, one after another, outcomes come back.

In: ``write`` from tasks. Out: receipts and errors, through completions. What really moves the bytes
is a ``Mover``, called on this thread only, except for its two stops. Blocking calls on a thread of
our own keep the event loop free for tokens; one thread a peer keeps writes in order, so that a
stopped peer holds up nobody else.
"""

from __future__ import annotations

import logging
import threading
from queue import SimpleQueue
from time import perf_counter
from typing import TYPE_CHECKING, Protocol

from anyio import CancelScope, current_time, move_on_after
from anyio.lowlevel import checkpoint, checkpoint_if_cancelled

from tilert_stream.completion import Completion

from .abc import Receipt
from .errors import DeadlineExceeded, TransferFailed, TransportClosed, TransportError
from .latch import Latch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .plan import Row

__all__ = ("Lane", "Mover", "Transfer")

logger = logging.getLogger(__name__)


class Transfer:
    """One write on its way."""

    __slots__ = ("completion", "given_up", "nbytes", "region", "segments", "settled", "source")

    def __init__(self, source: int, region: int, segments: Sequence[Row], nbytes: int) -> None:
        self.source = source
        """The id of the region read."""
        self.region = region
        """The id of the peer's region written."""
        self.segments = segments
        """Offsets inside the registered memory of both sides."""
        self.nbytes = nbytes
        self.given_up = False
        """A mover that sees this stops as soon as it can."""
        self.completion = Completion[Receipt]()
        self.settled = Latch()


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


class Lane:
    """Made in the event loop; its thread runs until ``shut``.

    :param name: the thread's name.
    """

    def __init__(self, name: str, mover: Mover) -> None:
        self._mover = mover
        self._lock = threading.Lock()
        self._queue: SimpleQueue[Transfer | Callable[[], None] | None] = SimpleQueue()
        self._open: set[Transfer] = set()
        self._running: Transfer | None = None
        self._closed = False
        self._unknowable = False
        self.ended = Latch()
        """Set at the thread's end."""
        # A daemon: a peer that never answers must not keep the process from ending.
        threading.Thread(target=self._run, name=name, daemon=True).start()

    async def open(self, seconds: float) -> None:
        """Reach the peer within ``seconds``.

        :raises TransportError: as ``Transport.connect``; the lane must then be closed.
        """
        completion = Completion[None]()

        def reach() -> None:
            try:
                self._mover.open()
            except TransportError as error:
                completion.fail(error)
            else:
                completion.set(None)

        self._queue.put(reach)
        with move_on_after(seconds):
            return await completion.wait()
        raise DeadlineExceeded(f"the peer did not answer within {seconds} s")

    async def write(self, transfer: Transfer, *, deadline: float) -> Receipt:
        """Send ``transfer`` and wait until it is visible to the peer.

        :raises TransportError: as ``Transport.write``.
        """
        await checkpoint_if_cancelled()
        if deadline <= current_time():
            raise DeadlineExceeded(f"the deadline of a write of {transfer.nbytes} bytes had passed")
        with self._lock:
            if self._closed:
                raise TransportClosed("the peer was disconnected; connect again")
            self._open.add(transfer)
            self._queue.put(transfer)
        with CancelScope(deadline=deadline):
            try:
                return await transfer.completion.wait()
            finally:
                if not transfer.completion.done:
                    self._give_up(transfer)
        if transfer.completion.done:
            return transfer.completion.value
        raise DeadlineExceeded(
            f"a write of {transfer.nbytes} bytes was not finished at its deadline; drain says"
            " when its target can be used again",
            settled=False,
        )

    def _give_up(self, transfer: Transfer) -> None:
        with self._lock:
            transfer.given_up = True
            if self._running is transfer:
                self._mover.stop()

    async def drain(self, seconds: float) -> bool:
        """Wait until no write given up so far can land any more; False if none can know."""
        with self._lock:
            given_up = [transfer for transfer in self._open if transfer.given_up]
        with move_on_after(seconds):
            await checkpoint()
            for transfer in given_up:
                await transfer.settled.wait()
            return not self._unknowable
        return False

    def shut(self) -> None:
        """Have the thread end: what is open fails with ``TransportClosed``. Idempotent, at once."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for transfer in self._open:
                transfer.given_up = True
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
        error: TransportError | None = None
        begin = perf_counter()
        if not skip:
            error = self._attempt(transfer)
        seconds = perf_counter() - begin
        settled = error is None or error.settled
        with self._lock:
            self._running = None
            self._open.discard(transfer)
            self._unknowable |= not settled
            closed = self._closed and transfer.given_up
        if closed:
            text = "the connection was closed before the write was done"
            transfer.completion.fail(TransportClosed(text, settled=settled))
        elif error is not None:
            transfer.completion.fail(error)
        elif not transfer.given_up:
            transfer.completion.set(Receipt(transfer.nbytes, len(transfer.segments), seconds))
        transfer.settled.set()

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
