"""Between two transports of one process: a copy, on a thread of its own.

In: the card of a ``MemoryTransport`` in this process. Out: its regions, written directly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from .abc import Caps
from .copying import copy_segments
from .errors import PeerLost
from .host_transport import HostTransport

if TYPE_CHECKING:
    from .card import Card
    from .lane import Transfer
    from .latch import Latch

__all__ = ("MemoryTransport",)

_alive: WeakValueDictionary[str, MemoryTransport] = WeakValueDictionary()
"""Every open memory transport of this process, by incarnation."""


class MemoryTransport(HostTransport):
    """For tests, and for prefill and decode in one process."""

    name = "memory"
    caps = Caps(
        one_sided=True,
        zero_copy=True,
        hard_abort=True,
        same_host_only=True,
        device_memory=False,
        max_descriptors=1 << 20,
    )

    def __init__(self) -> None:
        super().__init__()
        _alive[self.incarnation] = self

    def _mover(self, card: Card) -> _MemoryMover:
        return _MemoryMover(self, card.incarnation)

    def _stop_listening(self) -> Latch | None:
        _alive.pop(self.incarnation, None)
        return None

    def address(self, region: int) -> int:
        """Where a region of ours begins."""
        return self._memory[region].address


class _MemoryMover:
    def __init__(self, ours: MemoryTransport, incarnation: str) -> None:
        self._ours = ours
        self._incarnation = incarnation

    def open(self) -> None:
        self._peer()

    def _peer(self) -> MemoryTransport:
        peer = _alive.get(self._incarnation)
        if peer is None:
            raise PeerLost(f"no open memory transport {self._incarnation} in this process")
        return peer

    def move(self, transfer: Transfer) -> None:
        peer = self._peer()
        copy_segments(transfer, self._ours.address(transfer.source), peer.address(transfer.region))
        self._peer()

    def stop(self) -> None:
        """The copy looks at the transfer itself."""

    def abandon(self) -> None:
        """The copy looks at the transfer itself."""

    def close(self) -> None:
        """Nothing is held."""
