"""KV caches leave vLLM's worker on a thread of their own, with an event loop of its own.

In, from the forward path: extractions, filled staging, withdrawals. Out: a courier's work on the
event loop, one task a hand-over. Only ``begin`` may block, for staging memory.
"""

from __future__ import annotations

import logging
import threading
from concurrent import futures
from typing import TYPE_CHECKING

import anyio
from anyio.from_thread import BlockingPortal

from tilert_stream.errors import NotReady, TilertStreamError
from tilert_transports.control.errors import GrantGone

from ..hand_over.parcel import Parcel
from ..hand_over.staging import StagingMemory

if TYPE_CHECKING:
    from tilert_engine.layouts.abc import KVLayout

    from ..hand_over.destination import Destination
    from ..hand_over.parcel import Courier, OpenCourier
    from ..hand_over.staging import Piece
    from .ledger import Extraction, Withdrawal

__all__ = ("HandOver", "SenderThread")

logger = logging.getLogger(__name__)


class SenderThread:
    """A ``KVSender`` that runs a courier. Blocks until it is ready.

    :param timeout: seconds that a hand-over may take, and that ``begin`` waits for memory.
    :raises Exception: what opening the courier raises.
    """

    def __init__(
        self, open_courier: OpenCourier, layout: KVLayout, *, rank: int, timeout: float
    ) -> None:
        self._layout = layout
        self._rank = rank
        self._timeout = timeout
        self._open: dict[str, HandOver] = {}
        """By vLLM's id. Items are set on the forward path and popped on the event loop."""
        started: futures.Future[tuple[BlockingPortal, Courier]] = futures.Future()
        # A daemon: vLLM's worker may end without calling shutdown, and must not hang then.
        self._thread = threading.Thread(
            target=anyio.run,
            args=(_serve, open_courier, started),
            name="tilert_stream KV sender",
            daemon=True,
        )
        self._thread.start()
        self._portal, self._courier = started.result()
        self.staging = StagingMemory(self._courier.staging)

    # --- on the forward path -----------------------------------------------------------------

    @property
    def memory(self) -> memoryview:
        """As the contract."""
        return self._courier.staging

    def begin(self, extraction: Extraction) -> HandOver:
        """As the contract."""
        try:
            nbytes = self._layout.staging_bytes(extraction.seq_len, self._rank)
            piece = self.staging.take(nbytes, timeout=self._timeout)
        except TilertStreamError as error:
            self.tell(extraction.request_id, extraction.destination, error.message)
            raise
        parcel = Parcel(
            extraction.request_id,
            extraction.destination,
            extraction.seq_len,
            extraction.last_token,
            extraction.digest,
            piece.offset,
            nbytes,
        )
        hand_over = self._open[parcel.request_id] = HandOver(self, parcel, piece)
        return hand_over

    def withdraw(self, withdrawal: Withdrawal) -> None:
        """As the contract."""
        if not withdrawal.extracted:
            self.tell(withdrawal.request_id, withdrawal.destination, withdrawal.reason)
            return
        hand_over = self._open.get(withdrawal.request_id)
        if hand_over is not None:
            hand_over.cancel()

    def close(self) -> None:
        """As the contract."""
        if self._thread.is_alive():
            self.staging.close()
            self._portal.start_task_soon(self._portal.stop, True)  # noqa: FBT003 - anyio's own
            self._thread.join()

    def start(self, hand_over: HandOver) -> futures.Future[None]:
        """Begin to deliver; for ``HandOver``.

        :raises ~tilert_stream.errors.NotReady: the sender has been closed, or has died.
        """
        try:
            return self._portal.start_task_soon(self._deliver, hand_over)
        except RuntimeError as error:
            self.forget(hand_over)
            raise NotReady(f"the KV sender is not running: {error}") from error

    def tell(self, request_id: str, destination: Destination, reason: str) -> None:
        """Let a decode node know, soon, that nothing will come.

        :raises ~tilert_stream.errors.NotReady: the sender has been closed, or has died.
        """
        try:
            self._portal.start_task_soon(self._refuse, request_id, destination, reason)
        except RuntimeError as error:
            raise NotReady(f"the KV sender is not running: {error}") from error

    def forget(self, hand_over: HandOver) -> None:
        """A hand-over has ended; for ``HandOver``."""
        self._open.pop(hand_over.parcel.request_id, None)
        self.staging.give_back(hand_over.piece)

    # --- on the event loop -------------------------------------------------------------------

    async def _deliver(self, hand_over: HandOver) -> None:
        request = hand_over.parcel.request_id
        try:
            with anyio.fail_after(self._timeout):
                await self._courier.deliver(hand_over.parcel)
        except TimeoutError:
            logger.warning("request %s was not handed over in %g s", request, self._timeout)
        except GrantGone as error:
            # The client has left, or its first token was the last.
            logger.info("request %s was not handed over: %s", request, error)
        except TilertStreamError as error:
            logger.warning("request %s was not handed over: %s", request, error)
        except Exception:
            logger.exception("request %s was not handed over", request)
        finally:
            self.forget(hand_over)

    async def _refuse(self, request_id: str, destination: Destination, reason: str) -> None:
        try:
            with anyio.fail_after(self._timeout):
                await self._courier.refuse(request_id, destination, reason)
        except (TimeoutError, TilertStreamError) as error:
            # The lease ends the wait there.
            logger.warning("%s cannot be told %r: %s", destination.host, reason, error)


class HandOver:
    """One KV cache on its way; as the contract of the same name."""

    def __init__(self, sender: SenderThread, parcel: Parcel, piece: Piece) -> None:
        self._sender = sender
        self.parcel = parcel
        self.piece = piece
        self._task: futures.Future[None] | None = None

    @property
    def staging(self) -> memoryview:
        """As the contract."""
        return self.piece.memory

    def send(self) -> None:
        """As the contract."""
        self._task = self._sender.start(self)

    def abort(self, reason: str) -> None:
        """As the contract; before ``send``."""
        self._sender.forget(self)
        self._sender.tell(self.parcel.request_id, self.parcel.destination, reason)

    def cancel(self) -> None:
        """Stop sending; the decode node is told."""
        if self._task is not None:
            self._task.cancel()

    def wait(self) -> None:
        """As the contract."""
        if self._task is not None:
            futures.wait([self._task])


async def _serve(
    open_courier: OpenCourier, started: futures.Future[tuple[BlockingPortal, Courier]]
) -> None:
    try:
        async with open_courier() as courier, BlockingPortal() as portal:
            started.set_result((portal, courier))
            await portal.sleep_until_stopped()
    except BaseException as error:
        if started.done():
            logger.exception("the KV sender has died")
            raise
        started.set_exception(error)
