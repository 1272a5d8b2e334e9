"""The transports that move bytes of host memory by blocking calls: ``memory``, ``shm``, ``tcp``.

In: buffers and cards. Out: pre-faulted regions, and a thread for each peer with a mover on it.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from anyio.to_thread import run_sync

from .base import BaseTransport
from .host_memory import HostMemory, prefault
from .thread_lane import ThreadLane

if TYPE_CHECKING:
    from .abc import DeviceBuffer, HostBuffer
    from .card import Card
    from .lane import Lane
    from .thread_lane import Mover

__all__ = ("HostTransport",)


class HostTransport(BaseTransport[HostMemory]):
    """A kind adds its mover, and its own memory where peers need a special one."""

    @abstractmethod
    def _mover(self, card: Card) -> Mover:
        """What moves bytes to the peer of that card."""

    def _make_memory(self, nbytes: int) -> HostMemory:
        """Memory that peers can write to."""
        return HostMemory.anonymous(nbytes)

    async def _allocate(self, nbytes: int) -> HostMemory:
        memory = self._make_memory(nbytes)
        await run_sync(prefault, memory)
        return memory

    async def _register(self, buffer: HostBuffer | DeviceBuffer) -> HostMemory:
        memory = HostMemory(buffer)
        await run_sync(prefault, memory)
        return memory

    def _view(self, memory: HostMemory) -> memoryview:
        return memory.view

    def _make_lane(self, card: Card) -> Lane:
        return ThreadLane(f"tilert-{self.name}-{card.incarnation[:8]}", self._mover(card))
