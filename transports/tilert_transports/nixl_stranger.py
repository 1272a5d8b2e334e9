"""A NIXL peer that is none of ours: it has told its agent's metadata and an address, and no more.

In: what it told. Out: a lane like any other. There is no incarnation to read, and nothing says
whether the address is host memory or a device's: that is found out by asking NIXL for a transfer
which is never posted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .errors import HandshakeMismatch
from .nixl_lane import NixlLane, RemoteAgent
from .nixl_memory import HOST

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tilert_stream.completion import Completion

    from .nixl_binding import Binding, NativeAgent
    from .nixl_memory import Location, NixlMemory
    from .nixl_owner import NixlOwner

__all__ = ("NixlStrangerLane",)


class NixlStrangerLane(NixlLane):
    """See the module.

    :param metadata: of the peer's agent.
    :param place: where its memory lies, should that be device memory; region 0.
    :param ours: our regions, at least one.
    """

    def __init__(
        self,
        owner: NixlOwner,
        metadata: bytes,
        place: Location,
        ours: Mapping[int, NixlMemory],
    ) -> None:
        super().__init__(owner, RemoteAgent("", b"", metadata, place, {0: place}), ours)
        self._place = place

    def _reach(self, done: Completion[None]) -> None:
        def load(agent: NativeAgent, binding: Binding) -> None:
            self._load(agent, binding)
            found = self._find(agent, binding)
            self._peer = self._peer._replace(regions={0: found})
            done.set(None)

        self._owner.attempt(load, done.fail)

    def _find(self, agent: NativeAgent, binding: Binding) -> Location:
        """The place, with the kind of memory that the peer has registered it as."""
        first = np.zeros(1, dtype=np.uint64)
        byte = np.ones(1, dtype=np.uint64)
        source = next(iter(self._ours.values())).location.descriptors(binding, first, byte)
        failures: list[str] = []
        for device in dict.fromkeys((self._place.device, HOST)):
            place = self._place._replace(device=device)
            target = place.descriptors(binding, first, byte)
            try:
                handle = agent.createXferReq(binding.NIXL_WRITE, source, target, self._peer.name)
            except Exception as error:  # noqa: BLE001 - NIXL's classes have no common base
                kind = "host memory" if device == HOST else f"memory of CUDA device {device}"
                failures.append(f"as {kind}: {error!r}")
            else:
                agent.releaseXferReq(handle)
                return place
        raise HandshakeMismatch(
            f"nixl peer {self._peer.name} has nothing registered at address"
            f" {self._place.address:#x} that can be written to from here ({'; '.join(failures)})"
        )
