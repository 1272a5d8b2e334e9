"""What all transports have in common: regions, peers and their lanes.

In: buffers, cards and plans. Out: transfers on the lane of each peer. A kind of transport adds how
memory is made and registered, what its card says besides, and the lane that reaches a peer.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar
from uuid import uuid4

from anyio import move_on_after
from anyio.abc import AsyncResource

from .abc import Peer, Receipt, Region
from .card import Card
from .errors import RegionInvalid, TransportClosed
from .lane import Lane, Transfer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .abc import Caps, DeviceBuffer, HostBuffer
    from .card import Detail
    from .latch import Latch
    from .plan import Plan

__all__ = ("BaseTransport", "Memory", "check_region")

THREADS_END_WITHIN: Final = 2.0
"""Seconds that closing waits for threads that have been told to stop."""


class Memory(Protocol):
    """What is behind a region."""

    @property
    def address(self) -> int:
        """Of its first byte."""
        ...

    @property
    def nbytes(self) -> int:
        """Its size."""
        ...


M = TypeVar("M", bound=Memory)


class BaseTransport(AsyncResource, Generic[M]):
    """Keeps the contract of ``Transport`` for a kind of memory. ``async with`` closes it."""

    name: str
    caps: Caps

    def __init__(self) -> None:
        self.incarnation = uuid4().hex
        self._memory: dict[int, M] = {}
        self._lanes: dict[Peer, Lane] = {}
        self._closed = False

    # --- what a kind of transport adds -------------------------------------------------------

    @abstractmethod
    async def _allocate(self, nbytes: int) -> M:
        """Fresh memory that peers can write to, pre-faulted and registered."""

    @abstractmethod
    async def _register(self, buffer: HostBuffer | DeviceBuffer) -> M:
        """The caller's memory, pre-faulted and registered."""

    @abstractmethod
    def _view(self, memory: M) -> memoryview:
        """Its bytes in host memory.

        :raises RegionInvalid: it has none.
        """

    @abstractmethod
    def _make_lane(self, card: Card) -> Lane:
        """A lane to the peer of that card, not opened yet.

        :raises HandshakeMismatch: the card lacks something, or its peer is out of reach.
        """

    def _writable(self) -> Mapping[int, M]:
        """The regions that go on the card."""
        return self._memory

    def _listen(self) -> dict[str, Detail]:
        """Be ready for peers; what they need to know goes on the card. Called for each card."""
        return {}

    def _stop_listening(self) -> Latch | None:
        """Be written to no more. Idempotent.

        :returns: what is set when nothing can land any more; None if that is so now.
        """
        return None

    # --- the contract ------------------------------------------------------------------------

    async def allocate(self, nbytes: int) -> Region:
        """See ``Transport.allocate``."""
        self._check_open()
        return self._add(await self._allocate(nbytes))

    async def register(self, buffer: HostBuffer | DeviceBuffer) -> Region:
        """See ``Transport.register``."""
        self._check_open()
        return self._add(await self._register(buffer))

    def _add(self, memory: M) -> Region:
        region = Region(len(self._memory), 0, memory.nbytes)
        self._memory[region.id] = memory
        return region

    def view(self, region: Region) -> memoryview:
        """See ``Transport.view``."""
        self._check_own(region)
        view = self._view(self._memory[region.id])
        return view[region.offset : region.offset + region.nbytes]

    def card(self) -> bytes:
        """See ``Transport.card``."""
        self._check_open()
        regions = {id_: memory.nbytes for id_, memory in self._writable().items()}
        return Card(self.name, self.incarnation, regions, self._listen()).encode()

    async def connect(self, card: bytes, *, timeout: float) -> Peer:  # noqa: ASYNC109 - the contract's
        """See ``Transport.connect``."""
        self._check_open()
        read = Card.decode(card, self.name)
        peer = Peer(self.name, read.incarnation, read.region_table())
        return await self._open(self._make_lane(read), peer, timeout)

    async def _open(self, lane: Lane, peer: Peer, seconds: float) -> Peer:
        try:
            await lane.open(seconds)
            self._check_open()
        except BaseException:
            lane.shut()
            raise
        self._lanes[peer] = lane
        return peer

    async def write(
        self, peer: Peer, source: Region, target: Region, plan: Plan, *, deadline: float
    ) -> Receipt:
        """See ``Transport.write``."""
        self._check_open()
        lane = self._lane(peer)
        self._check_own(source)
        check_region(target, peer.regions.get(target.id), "the peer")
        plan.check(source, target, self.caps.max_descriptors)
        segments = plan.segments
        if source.offset or target.offset:
            segments = tuple(
                (source.offset + from_, target.offset + to, nbytes)
                for from_, to, nbytes in segments
            )
        transfer = Transfer(source.id, target.id, segments, plan.nbytes)
        return await lane.write(transfer, deadline=deadline)

    async def drain(self, peer: Peer, *, timeout: float) -> bool:  # noqa: ASYNC109 - the contract's
        """See ``Transport.drain``."""
        return await self._lane(peer).drain(timeout)

    async def disconnect(self, peer: Peer) -> None:
        """See ``Transport.disconnect``."""
        lane = self._lane(peer)
        lane.shut()
        with move_on_after(THREADS_END_WITHIN, shield=True):
            await lane.ended.wait()
        self._lanes.pop(peer, None)

    async def aclose(self) -> None:
        """See ``Transport.aclose``."""
        self._closed = True
        listening = self._stop_listening()
        lanes = list(self._lanes.values())
        self._lanes.clear()
        for lane in lanes:
            lane.shut()
        with move_on_after(THREADS_END_WITHIN, shield=True):
            for lane in lanes:
                await lane.ended.wait()
            if listening is not None:
                await listening.wait()

    # --- checks ------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            raise TransportClosed(f"the {self.name} transport is closed")

    def _lane(self, peer: Peer) -> Lane:
        lane = self._lanes.get(peer)
        if lane is None:
            raise TransportClosed(
                f"peer {peer.incarnation} is not connected through this {self.name} transport"
            )
        return lane

    def _check_own(self, region: Region) -> None:
        memory = self._memory.get(region.id)
        whole = Region(region.id, 0, memory.nbytes) if memory is not None else None
        check_region(region, whole, "this transport")


def check_region(region: Region, whole: Region | None, owner: str) -> None:
    """Prove that ``region`` is a part of what is registered.

    :raises RegionInvalid: it is not.
    """
    if whole is None:
        raise RegionInvalid(
            f"region {region.id} is not writable at {owner}; register it before the card is made"
        )
    if region.offset < 0 or region.nbytes < 0 or region.offset + region.nbytes > whole.nbytes:
        raise RegionInvalid(
            f"region {region.id}: offset {region.offset} + {region.nbytes} bytes, but {owner} has"
            f" {whole.nbytes} bytes there"
        )
