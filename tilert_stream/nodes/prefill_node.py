"""A prefill node's work: a prompt in; its first token out at once, and its KV cache on its way.

::

    compute ─► first token ─► answer
       └─────► KV cache ─► staging memory ─► courier ─► the decode node's landing region

The hand-over outlives the request: the router has its answer by then.
"""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from anyio import (
    AsyncContextManagerMixin,
    CapacityLimiter,
    create_task_group,
    fail_after,
    to_thread,
)

from tilert_stream.cluster.prompt_digest import prompt_digest
from tilert_stream.errors import NotReady, TilertStreamError
from tilert_stream.events import Finished, GenerateRequest, Reserved, TokenBatch
from tilert_stream.lifecycle import CLOCK, State
from tilert_stream.nodes.local import LocalPrefill
from tilert_transports.control.errors import GrantGone

from .hand_over.courier import open_courier
from .hand_over.parcel import Parcel
from .hand_over.staging import StagingMemory
from .landing_memory import transport_maker

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from anyio.abc import TaskGroup

    from tilert_engine.layouts.abc import KVLayout
    from tilert_engine.prefill_worker import PrefillWorker
    from tilert_stream.scope import RequestScope
    from tilert_transports.control.auth import ClusterKey

    from .hand_over.courier import NodeCourier
    from .hand_over.destination import Destination
    from .hand_over.staging import Piece
    from .prefill_orders import PrefillOrder

__all__ = ("HandOverDesk", "PrefillAndHandOver")

RunT = TypeVar("RunT")

logger = logging.getLogger(__name__)


class HandOverDesk(AsyncContextManagerMixin):
    """Where KV caches leave a prefill node. Entered once by the node's app.

    :param transport: its registered name.
    :param stagings: prompts of the longest kind whose KV caches can wait at once.
    :param timeout: seconds that one may take from its first token to the decode node.
    :param key: the cluster's.
    :param on_delivered: is told the bytes of each KV cache that was handed over, and the seconds
        from its first token on.
    """

    def __init__(
        self,
        layout: KVLayout,
        *,
        transport: str,
        host: str,
        stagings: int,
        timeout: float,
        key: ClusterKey | None = None,
        on_delivered: Callable[[int, float], object] | None = None,
    ) -> None:
        self._layout = layout
        self._make_transport = transport_maker(transport, host=host)
        self._staging_bytes = stagings * layout.staging_bytes(layout.max_seq_len)
        self._timeout = timeout
        self._key = key
        self._on_delivered = on_delivered
        self._courier: NodeCourier | None = None
        self._staging: StagingMemory | None = None
        self._tasks: TaskGroup | None = None

    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[HandOverDesk]:
        # A thread that waits for staging memory must not keep others from their work.
        self._limiter = CapacityLimiter(64)
        courier = open_courier(
            self._make_transport(),
            self._layout,
            rank=0,
            staging_bytes=self._staging_bytes,
            send_timeout=self._timeout,
            key=self._key,
        )
        async with courier as self._courier:
            staging = self._staging = StagingMemory(self._courier.staging)
            try:
                async with create_task_group() as self._tasks:
                    yield self
                    staging.close()
                    self._tasks.cancel_scope.cancel()
            finally:
                self._tasks = self._staging = self._courier = None

    @property
    def free_bytes(self) -> int:
        """Staging memory that no KV cache waits in."""
        return 0 if self._staging is None else self._staging.free_bytes

    async def meet(self, to: Destination) -> None:
        """Connect to a decode node before anything is computed for it.

        :raises ~tilert_stream.errors.TilertStreamError: it does not answer, or does not fit.
        """
        if self._courier is not None:
            await self._courier.meet(to)

    def send(
        self, request_id: str, prompt_ids: tuple[int, ...], kv: object, to: Destination
    ) -> None:
        """Hand ``kv`` over some time; never waits. A failure is logged, and told to the other side.

        :raises ~tilert_stream.errors.NotReady: the desk has not been entered.
        """
        if self._tasks is None:
            raise NotReady("the hand-over desk is closed: enter the node's lifespan first")
        self._tasks.start_soon(self._hand_over, request_id, prompt_ids, kv, to)

    async def _hand_over(
        self, request_id: str, prompt_ids: tuple[int, ...], kv: object, to: Destination
    ) -> None:
        courier, staging = self._courier, self._staging
        if courier is None or staging is None:
            return
        begun = CLOCK()
        try:
            with fail_after(self._timeout):
                piece = await to_thread.run_sync(
                    partial(self._stage, staging, len(prompt_ids), kv), limiter=self._limiter
                )
                parcel = Parcel(
                    request_id,
                    to,
                    len(prompt_ids),
                    prompt_ids[-1],
                    prompt_digest(prompt_ids),
                    piece.offset,
                    piece.memory.nbytes,
                )
                try:
                    await courier.deliver(parcel)
                finally:
                    staging.give_back(piece)
                if self._on_delivered is not None:
                    self._on_delivered(parcel.nbytes, CLOCK() - begun)
        except TimeoutError:
            logger.warning("request %s was not handed over in %g s", request_id, self._timeout)
        except GrantGone as error:
            # The client has left, or its first token was the last.
            logger.info("request %s was not handed over: %s", request_id, error)
        except TilertStreamError as error:
            logger.warning("request %s was not handed over: %s", request_id, error)

    def _stage(self, staging: StagingMemory, tokens: int, kv: object) -> Piece:
        piece = staging.take(self._layout.staging_bytes(tokens), timeout=self._timeout)
        try:
            self._layout.pack(kv, piece.memory)
        except BaseException:
            staging.give_back(piece)
            raise
        return piece


class PrefillAndHandOver(Generic[RunT]):
    """``GenerateRequest`` → ``TokenBatch``: the source of a prefill node's pipeline."""

    stage_name = "prefill"

    def __init__(self, worker: PrefillWorker[RunT], desk: HandOverDesk) -> None:
        self._node = LocalPrefill(worker)
        self._desk = desk

    async def produce(self, item: GenerateRequest, scope: RequestScope) -> TokenBatch | None:
        """Compute the prompt; its KV cache leaves once the first token has."""
        order = cast("PrefillOrder", item)
        scope.lifecycle.move(State.PREFILLING)
        if order.destination is not None:
            await self._desk.meet(order.destination)
        prefilled = await self._node.prefill(Reserved(0), scope)
        scope.usage = prefilled.usage
        scope.mailbox.put(prefilled.first, Finished("length"))
        if order.destination is not None:
            self._desk.send(order.id, order.prompt_ids, prefilled.kv, order.destination)
        return None
