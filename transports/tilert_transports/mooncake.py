"""Mooncake's transfer engine: RDMA between hosts, for those who run it already.

In: buffers in host memory. Out: their addresses on the card, and writes by blocking calls on the
lane's thread. Not beside NIXL in one process: the libibverbs that Mooncake needs makes NIXL crash
at the interpreter's end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from anyio.to_thread import run_sync

from .abc import Caps
from .errors import HandshakeMismatch, PeerLost, PeerStale, RegionInvalid, TransferFailed
from .host_memory import HostMemory
from .host_transport import HostTransport
from .mooncake_engine import MooncakeEngine

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .abc import DeviceBuffer, HostBuffer, Region
    from .card import Card, Detail
    from .lane import Transfer
    from .latch import Latch
    from .thread_lane import Mover

__all__ = ("MooncakeTransport",)

INCARNATION_BYTES: Final = 16
BATCH: Final = 1024
"""Descriptors of one call: larger batches are known to time out."""


class MooncakeTransport(HostTransport):
    """Needs the extra ``mooncake``, and libibverbs1.

    :param host: this host's address as peers dial it.
    :param protocol: ``tcp`` or ``rdma``.
    :param device: the RDMA device; empty for all.
    """

    name = "mooncake"
    caps = Caps(
        one_sided=False,
        zero_copy=True,
        hard_abort=False,
        same_host_only=False,
        device_memory=False,
        max_descriptors=1 << 16,
    )

    def __init__(self, *, host: str = "127.0.0.1", protocol: str = "tcp", device: str = "") -> None:
        super().__init__()
        self._engine = MooncakeEngine(host, protocol, device)
        self._identity = HostMemory(bytearray.fromhex(self.incarnation))
        self._session = ""

    async def _allocate(self, nbytes: int) -> HostMemory:
        memory = await super()._allocate(nbytes)
        await run_sync(self._register_memory, memory)
        return memory

    async def _register(self, buffer: HostBuffer | DeviceBuffer) -> HostMemory:
        memory = await super()._register(buffer)
        await run_sync(self._register_memory, memory)
        return memory

    def _register_memory(self, memory: HostMemory) -> None:
        if not self._session:
            self._engine.register(self._identity)
            self._session = self._engine.session()
        self._engine.register(memory)

    @property
    def session(self) -> str:
        """Mooncake's own name of this engine, ``host:port``: any Mooncake engine can dial it.

        :raises RegionInvalid: there is no region yet.
        """
        if not self._session:
            raise RegionInvalid("a Mooncake session needs a region: allocate or register one first")
        return self._session

    def address(self, region: Region) -> int:
        """Where a region of ours lies, for engines that are told addresses.

        :raises RegionInvalid: unknown, or out of range.
        """
        self._check_own(region)
        return self._memory[region.id].address + region.offset

    def _listen(self) -> dict[str, Detail]:
        details: dict[str, Detail] = {
            "session": self._session,
            "identity": self._identity.address,
        }
        for id_, memory in self._memory.items():
            details[f"address{id_}"] = memory.address
        return details

    def _mover(self, card: Card) -> Mover:
        return _MooncakeMover(self._engine, self._memory, card)

    def _stop_listening(self) -> Latch | None:
        self._engine.stop()
        return None


class _MooncakeMover:
    def __init__(self, engine: MooncakeEngine, ours: Mapping[int, HostMemory], card: Card) -> None:
        self._engine = engine
        self._ours = ours
        self._incarnation = bytes.fromhex(card.incarnation)
        self._session = card.text("session")
        if not self._session:
            raise HandshakeMismatch("the peer's card: session is '': it has no region to write to")
        self._identity = card.number("identity")
        self._addresses = {id_: card.number(f"address{id_}") for id_ in card.regions}

    def open(self) -> None:
        # The library has no handshake: the incarnation is read out of the peer's memory.
        landing = HostMemory(bytearray(INCARNATION_BYTES))
        self._engine.register(landing)
        try:
            self._engine.read(self._session, landing.address, self._identity, INCARNATION_BYTES)
        except TransferFailed as error:
            raise PeerLost(f"mooncake peer {self._session} does not answer") from error
        finally:
            self._engine.unregister(landing)
        found = bytes(landing.view)
        if found != self._incarnation:
            raise PeerStale(
                f"mooncake peer {self._session} has restarted as {found.hex()}; get its new card"
            )

    def move(self, transfer: Transfer) -> None:
        here, there = self._ours[transfer.source].address, self._addresses[transfer.region]
        for begin in range(0, len(transfer.segments), BATCH):
            if transfer.given_up:
                return
            batch = transfer.segments[begin : begin + BATCH]
            try:
                self._engine.write(
                    self._session,
                    [here + from_ for from_, _, _ in batch],
                    [there + to for _, to, _ in batch],
                    [nbytes for _, _, nbytes in batch],
                )
            except TransferFailed as error:
                raise self._reason(error) from error

    def _reason(self, error: TransferFailed) -> TransferFailed | PeerLost | PeerStale:
        """What lies behind the one code that the library has: ask the peer who it is."""
        try:
            self.open()
        except PeerLost as lost:
            return PeerLost(lost.message, settled=False)
        except PeerStale as stale:
            return stale
        return error

    def stop(self) -> None:
        """The library cannot stop; between two batches the mover looks itself."""

    def abandon(self) -> None:
        """The library cannot be interrupted."""

    def close(self) -> None:
        """Nothing is held."""
