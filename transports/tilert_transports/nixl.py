"""NIXL with UCX: RDMA between hosts, CUDA IPC and shared memory inside one, host memory or device.

In: buffers in host memory or on a CUDA device. Out: their metadata on the card, and writes that the
peer's processor takes no part in where the hardware allows it. Nothing here imports torch: a tensor
is taken by its pointer. Fork a process before the transport exists, or spawn it: a forked agent
never makes progress.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from anyio.to_thread import run_sync

from tilert_stream.completion import Completion

from .abc import Caps, Peer, Region
from .base import BaseTransport
from .errors import HandshakeMismatch, RegionInvalid, TransportUnavailable
from .host_memory import HostMemory, prefault
from .nixl_binding import installed
from .nixl_lane import INCARNATION_BYTES, NixlLane, RemoteAgent
from .nixl_memory import Location, NixlMemory, device_location
from .nixl_owner import NixlOwner
from .nixl_stranger import NixlStrangerLane

if TYPE_CHECKING:
    from .abc import DeviceBuffer, HostBuffer
    from .card import Card, Detail
    from .latch import Latch
    from .nixl_binding import Binding, NativeAgent

__all__ = ("NixlTransport",)


class NixlTransport(BaseTransport[NixlMemory]):
    """Needs the extra ``nixl``.

    :raises TransportUnavailable: no NIXL wheel is installed.
    """

    name = "nixl"
    caps = Caps(
        one_sided=False,
        zero_copy=True,
        hard_abort=False,
        same_host_only=False,
        device_memory=True,
        max_descriptors=1 << 16,
    )

    def __init__(self) -> None:
        if not installed():
            raise TransportUnavailable(
                "NIXL is not installed; pip install 'tilert-stream[nixl]', or choose tcp"
            )
        super().__init__()
        self._owner = NixlOwner(_agent_name(self.incarnation))
        self._metadata: bytes | None = None
        self._identity: HostMemory | None = None

    # --- memory ------------------------------------------------------------------------------

    async def _allocate(self, nbytes: int) -> NixlMemory:
        return await self._add_host(HostMemory.anonymous(nbytes))

    async def _register(self, buffer: HostBuffer | DeviceBuffer) -> NixlMemory:
        device = device_location(buffer)
        if device is None:
            return await self._add_host(HostMemory(buffer))
        await self._register_location(device)
        return NixlMemory(device, None, buffer)

    async def _add_host(self, host: HostMemory) -> NixlMemory:
        await run_sync(prefault, host)
        location = Location.of(host)
        await self._register_location(location)
        return NixlMemory(location, host, host)

    async def _register_location(self, *locations: Location) -> None:
        if self._identity is None:
            self._identity = HostMemory(bytearray.fromhex(self.incarnation))
            locations = (Location.of(self._identity), *locations)
        done = Completion[bytes]()

        def register(agent: NativeAgent, binding: Binding) -> None:
            for location in locations:
                agent.registerMem(location.registration(binding), [])
            done.set(agent.getLocalMD())

        self._owner.attempt(register, done.fail)
        self._metadata = await done.wait()

    @property
    def metadata(self) -> bytes:
        """NIXL's own, of this agent and all its regions: any NIXL agent can load it.

        :raises RegionInvalid: there is no region yet.
        """
        if self._metadata is None:
            raise RegionInvalid("NIXL's metadata needs a region: allocate or register one first")
        return self._metadata

    def locate(self, region: Region) -> Location:
        """Where a region of ours lies, for agents that are told addresses.

        :raises RegionInvalid: unknown, or out of range.
        """
        self._check_own(region)
        memory = self._memory[region.id]
        address = memory.address + region.offset
        return Location(address, region.nbytes, memory.location.device)

    def _view(self, memory: NixlMemory) -> memoryview:
        if memory.host is None:
            raise RegionInvalid(f"the region is on CUDA device {memory.location.device}; no view")
        return memory.host.view

    # --- peers -------------------------------------------------------------------------------

    def _listen(self) -> dict[str, Detail]:
        if self._identity is None:
            raise RegionInvalid("a NIXL card needs a region: allocate or register one first")
        details: dict[str, Detail] = {
            "metadata": self.metadata.hex(),
            "identity": Location.of(self._identity).encode(),
        }
        for id_, memory in self._memory.items():
            details[f"region{id_}"] = memory.location.encode()
        return details

    def _make_lane(self, card: Card) -> NixlLane:
        return NixlLane(self._owner, _remote(card), self._memory)

    async def reach(self, metadata: bytes, place: Location, *, timeout: float) -> Peer:  # noqa: ASYNC109 - as ``connect``
        """Connect with an agent of somebody else's, which has told where its memory lies.

        :param metadata: as its NIXL gives it.
        :param place: all that is written to, region 0 of the peer; with the device that it lies on
            unless it turns out to be host memory.
        :raises RegionInvalid: no region of ours to write from has been registered yet.
        :raises HandshakeMismatch: damaged metadata, or its agent has no such memory.
        :raises PeerLost: nobody answers there.
        :raises DeadlineExceeded: no answer in time.
        """
        self._check_open()
        if not self._memory:
            raise RegionInvalid("there is no region to write from: allocate or register one first")
        peer = Peer(self.name, "", {0: Region(0, 0, place.nbytes)})
        lane = NixlStrangerLane(self._owner, metadata, place, self._memory)
        return await self._open(lane, peer, timeout)

    def _stop_listening(self) -> Latch | None:
        self._owner.stop()
        return self._owner.ended


def _agent_name(incarnation: str) -> str:
    # A restarted agent of the same name would be taken for the old one.
    return f"tilert-{incarnation}"


def _remote(card: Card) -> RemoteAgent:
    try:
        metadata = bytes.fromhex(card.text("metadata"))
    except ValueError as error:
        raise HandshakeMismatch(
            "the peer's card: metadata has a character that is no hex digit"
        ) from error
    return RemoteAgent(
        _agent_name(card.incarnation),
        bytes.fromhex(card.incarnation),
        metadata,
        Location.decode(card.text("identity"), INCARNATION_BYTES),
        {
            id_: Location.decode(card.text(f"region{id_}"), nbytes)
            for id_, nbytes in card.regions.items()
        },
    )
