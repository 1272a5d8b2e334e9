"""The writes of one peer, between the event loop and the thread that carries them out.

In: transfers, from tasks. Out: receipts and errors, through completions. ``Lane`` keeps the account
of what is open, given up and settled; a kind of lane knows the thread.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from anyio import CancelScope, current_time, move_on_after
from anyio.lowlevel import checkpoint, checkpoint_if_cancelled

from tilert_stream.completion import Completion

from .abc import Receipt
from .errors import DeadlineExceeded, TransportClosed
from .latch import Latch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .errors import TransportError
    from .plan import Row

__all__ = ("Lane", "Transfer")


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
        """Whoever carries it out stops as soon as it sees this."""
        self.completion = Completion[Receipt]()
        self.settled = Latch()
        """Set when no byte of it can land any more, or when that will never be known."""


class Lane(ABC):
    """Made in the event loop; ``ended`` is set when its last transfer has come to rest."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: set[Transfer] = set()
        self._closed = False
        self._unknowable = False
        self.ended = Latch()

    # --- what a kind of lane adds ------------------------------------------------------------

    @abstractmethod
    def _reach(self, done: Completion[None]) -> None:
        """Have the peer reached, and ``done`` completed."""

    @abstractmethod
    def _submit(self, transfer: Transfer) -> None:
        """Have ``transfer`` carried out, and ``_finish`` called with its outcome."""

    @abstractmethod
    def _stop(self, transfer: Transfer) -> None:
        """``transfer`` has just been given up. Called under the lane's lock; must not block."""

    @abstractmethod
    def _shut(self) -> None:
        """Every open transfer has just been given up, for good. As ``_stop``."""

    # --- from the event loop -----------------------------------------------------------------

    async def open(self, seconds: float) -> None:
        """Reach the peer within ``seconds``.

        :raises TransportError: as ``Transport.connect``; the lane must then be shut.
        """
        done = Completion[None]()
        self._reach(done)
        with move_on_after(seconds):
            return await done.wait()
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
            self._submit(transfer)
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
            self._stop(transfer)

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
        """Take no more writes; what is open fails with ``TransportClosed``. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for transfer in self._open:
                transfer.given_up = True
            self._shut()

    # --- from the thread ---------------------------------------------------------------------

    def _finish(self, transfer: Transfer, error: TransportError | None, seconds: float) -> None:
        """``transfer`` has come to rest, or its rest cannot be known (``error.settled``)."""
        settled = error is None or error.settled
        with self._lock:
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
