"""Parcels → decode nodes: one control connection and one transport peer a node, made when needed.

In: parcels in registered staging memory. Out: rows in the landing regions that decode nodes grant.
A connection that has broken is left, and made anew for the next parcel.
"""

from __future__ import annotations

import logging
import socket
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import anyio
from anyio import TASK_STATUS_IGNORED

from tilert_stream.errors import TilertStreamError
from tilert_stream.http.client import HTTPClient
from tilert_transports.abc import Region
from tilert_transports.control.client import ControlClient
from tilert_transports.control.errors import ControlError, PeerLost
from tilert_transports.control.grant_id import GrantId
from tilert_transports.control.hello import NONCE_BYTES, Hello
from tilert_transports.control.messages import Claim
from tilert_transports.plan import Plan

from ..recent import Recent
from .http_word import HttpWord
from .tilert_courier import TilertCourier

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from anyio.abc import TaskGroup, TaskStatus

    from tilert_engine.layouts.abc import KVLayout
    from tilert_transports.abc import Peer, Transport
    from tilert_transports.control.auth import ClusterKey
    from tilert_transports.control.client import Progressing
    from tilert_transports.control.messages import Grant

    from .destination import Destination
    from .parcel import Parcel

__all__ = ("NodeCourier", "open_courier")

logger = logging.getLogger(__name__)

PLANS: Final = 64
"""Kept for each decode node: a plan has a row for each plane of each layer."""


@dataclass(slots=True)
class _Node:
    """A decode node that we are connected to."""

    client: ControlClient
    peer: Peer
    layout: KVLayout
    """Ours, with the rows of its landing regions."""
    rank: int
    _plans: Recent[int, Plan] = field(default_factory=lambda: Recent[int, Plan](PLANS))

    def plan(self, seq_len: int) -> Plan:
        """What is copied for a prompt of that length; of lengths that come again it is kept."""
        plan = self._plans.pop(seq_len) or Plan(self.layout.plan(seq_len, self.rank))
        self._plans.put(seq_len, plan)
        return plan


@dataclass(slots=True)
class _Door:
    """Where a decode node is; its lock keeps two parcels from connecting at once."""

    lock: anyio.Lock = field(default_factory=anyio.Lock)
    node: _Node | None = None


class NodeCourier:
    """A ``Courier`` over a transport. Made by ``open_courier``."""

    def __init__(
        self,
        transport: Transport,
        region: Region,
        layout: KVLayout,
        hello: Hello,
        *,
        rank: int,
        key: ClusterKey | None,
        send_timeout: float,
        tasks: TaskGroup,
        http: HTTPClient,
    ) -> None:
        self._transport = transport
        self._region = region
        self._layout = layout
        self._hello = hello
        self._rank = rank
        self._key = key
        self._timeout = send_timeout
        self._tasks = tasks
        self._word = HttpWord(http, key)
        self._doors: dict[tuple[str, int], _Door] = {}
        self._tilert = TilertCourier(transport, region, layout, timeout=send_timeout)

    @property
    def staging(self) -> memoryview:
        """As the contract."""
        return self._transport.view(self._region)

    async def meet(self, destination: Destination) -> None:
        """Connect to a decode node, if that has not been done; the request does not end by it.

        TileRT's own servers are met a request at a time: this node alone is looked at.

        :raises ~tilert_stream.errors.TilertStreamError: it does not answer, or does not fit.
        """
        if destination.grant is None:
            self._tilert.check()
        else:
            await self._node(destination)

    async def deliver(self, parcel: Parcel) -> None:
        """As the contract."""
        request, to = parcel.request_id, parcel.destination
        if to.grant is None:
            try:
                await self._tilert.deliver(parcel)
            except BaseException as error:
                reason = (
                    error.message
                    if isinstance(error, TilertStreamError)
                    else "the hand-off was cancelled"
                )
                with anyio.CancelScope(shield=True):
                    await self._word.decline(request, to, reason)
                raise
            return
        try:
            await self._hand_over(parcel)
        except PeerLost as error:
            await self._word.decline(request, to, error.message)
            raise

    async def _hand_over(self, parcel: Parcel) -> None:
        node = await self._node(parcel.destination, _grant_of(parcel.destination))

        async def write(grant: Grant, _progressing: Progressing) -> None:
            await self._transport.write(
                node.peer,
                self._region.part(parcel.offset, parcel.nbytes),
                Region(grant.region, grant.offset, grant.nbytes),
                node.plan(parcel.seq_len),
                deadline=anyio.current_time() + self._timeout,
            )

        await node.client.hand_off(self._claim(parcel), write, lambda: self._drain(node.peer))

    async def refuse(self, request_id: str, destination: Destination, reason: str) -> None:
        """As the contract."""
        if destination.grant is None:
            await self._word.decline(request_id, destination, reason)
            return
        grant = _grant_of(destination)
        try:
            node = await self._node(destination, grant)
            node.client.decline(grant, reason)
        except PeerLost:
            await self._word.decline(request_id, destination, reason)
            raise

    def _claim(self, parcel: Parcel) -> Claim:
        grant = _grant_of(parcel.destination)
        return Claim(
            request=grant.request,
            incarnation=grant.incarnation,
            generation=grant.generation,
            rank=self._rank,
            tokens=parcel.seq_len,
            nbytes=parcel.nbytes,
            last_token=parcel.last_token,
            digest=parcel.digest,
        )

    async def _drain(self, peer: Peer) -> bool:
        return await self._transport.drain(peer, timeout=self._timeout)

    async def _node(self, destination: Destination, grant: GrantId | None = None) -> _Node:
        door = self._doors.setdefault((destination.host, destination.port), _Door())
        async with door.lock:
            if door.node is not None and not door.node.client.is_open:
                await self._leave(door.node)
                door.node = None
            if door.node is None:
                door.node = await self._connect(destination, grant)
            return door.node

    async def _connect(self, destination: Destination, grant: GrantId | None) -> _Node:
        """Connect for ``grant``, whose request fails at once if that cannot be done."""
        hello = replace(self._hello, grant=grant)
        client = ControlClient(destination.host, destination.port, hello, key=self._key)
        await self._tasks.start(_run, client)
        try:
            peer = await self._transport.connect(client.peer.card, timeout=self._timeout)
        except BaseException as error:
            if grant is not None and client.is_open and isinstance(error, TilertStreamError):
                client.decline(grant, error.message)
            client.close()
            raise
        return _Node(client, peer, self._layout.sized(client.peer.max_seq_len), self._rank)

    async def _leave(self, node: _Node) -> None:
        node.client.close()
        await self._drain(node.peer)
        await self._transport.disconnect(node.peer)


def _grant_of(destination: Destination) -> GrantId:
    grant = destination.grant
    assert grant is not None  # noqa: S101 - those without one have gone another way
    return GrantId(grant.request, grant.incarnation, grant.generation)


async def _run(
    client: ControlClient, *, task_status: TaskStatus[None] = TASK_STATUS_IGNORED
) -> None:
    """Serve one connection, and keep its faults from the others.

    :raises ~tilert_transports.control.errors.ControlError: it could not be opened.
    """
    try:
        await client.run(task_status=task_status)
    except ControlError:
        raise
    except Exception:
        logger.exception("a control connection has failed")


@asynccontextmanager
async def open_courier(
    transport: Transport,
    layout: KVLayout,
    *,
    rank: int,
    staging_bytes: int,
    send_timeout: float,
    key: ClusterKey | None = None,
) -> AsyncGenerator[NodeCourier]:
    """A courier, for as long as the block runs; the transport is closed then.

    :param send_timeout: seconds that connecting, a write or a drain may take.
    """
    try:
        hello = Hello(
            node=socket.gethostname(),
            role="prefill",
            incarnation=uuid4().hex,
            layout=layout.describe(),
            max_seq_len=layout.max_seq_len,
            transport=transport.name,
            card=b"",  # prefill is never written to
            nonce=bytes(NONCE_BYTES),
        )
        region = await transport.allocate(staging_bytes)
        with HTTPClient() as http:
            async with anyio.create_task_group() as tasks:
                yield NodeCourier(
                    transport,
                    region,
                    layout,
                    hello,
                    rank=rank,
                    key=key,
                    send_timeout=send_timeout,
                    tasks=tasks,
                    http=http,
                )
                tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await transport.aclose()
