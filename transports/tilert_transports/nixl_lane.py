"""One NIXL peer: its writes, posted by the agent's owner thread.

In: transfers. Out: their outcomes. NIXL cannot cancel: a write given up before it was posted never
is, one that is on its way runs to its end, and only then is settled. Connecting reads the peer's
incarnation out of its memory, which proves that it is the one on the card and that it answers, and
takes the cost of UCX's wiring off the first write.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from .errors import HandshakeMismatch, PeerLost, PeerStale, TransportClosed
from .host_memory import HostMemory
from .lane import Lane
from .nixl_memory import Location

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tilert_stream.completion import Completion

    from .errors import TransportError
    from .lane import Transfer
    from .nixl_binding import Binding, NativeAgent, TransferHandle
    from .nixl_memory import NixlMemory
    from .nixl_owner import NixlOwner

__all__ = ("INCARNATION_BYTES", "NixlLane", "RemoteAgent")

INCARNATION_BYTES: Final = 16


class RemoteAgent(NamedTuple):
    """What a card says."""

    name: str
    """Empty: whatever its metadata says."""
    incarnation: bytes
    metadata: bytes
    identity: Location
    """Where the peer keeps its incarnation."""
    regions: Mapping[int, Location]


class NixlLane(Lane):
    """See the module.

    :param ours: our regions; looked at for each write.
    """

    def __init__(self, owner: NixlOwner, peer: RemoteAgent, ours: Mapping[int, NixlMemory]) -> None:
        super().__init__()
        self._owner = owner
        self._peer = peer
        self._ours = ours
        self._loaded = False

    def _reach(self, done: Completion[None]) -> None:
        def load(agent: NativeAgent, binding: Binding) -> None:
            self._load(agent, binding)
            self._owner.post(_Greeting(self._peer, done))

        self._owner.attempt(load, done.fail)

    def _load(self, agent: NativeAgent, binding: Binding) -> None:
        """Have the agent know the peer; on the owner's thread."""
        try:
            name = agent.loadRemoteMD(self._peer.metadata).decode()
        except (binding.nixlBackendError, binding.nixlRemoteDisconnectError) as error:
            who = self._peer.name or "of somebody else's"
            raise PeerLost(f"nixl peer {who} does not answer: {error}") from error
        except Exception as error:
            raise HandshakeMismatch(
                f"the peer's card: NIXL does not take its metadata: {error!r}"
            ) from error
        if self._peer.name and name != self._peer.name:
            raise HandshakeMismatch(
                f"the peer's card: its metadata is of {name!r}, not of {self._peer.name!r}"
            )
        self._peer = self._peer._replace(name=name)
        self._loaded = True
        self._owner.remotes[name] += 1

    def _submit(self, transfer: Transfer) -> None:
        self._owner.post(_Write(self, transfer))

    def _stop(self, transfer: Transfer) -> None:
        """NIXL has nothing to stop it with."""

    def _shut(self) -> None:
        for transfer in self._open:
            text = "the connection was closed before the write was done"
            transfer.completion.fail(TransportClosed(text, settled=False))
        # Behind every transfer of ours in the queue: each has been posted or skipped by then.
        self._owner.attempt(self._forget, lambda _: self.ended.set())

    def _forget(self, agent: NativeAgent, _binding: Binding) -> None:
        if self._loaded:
            self._owner.remotes[self._peer.name] -= 1
            # Not under a transfer that is on its way: its state would be lost.
            if not self._owner.remotes[self._peer.name] and not self._open:
                agent.invalidateRemoteMD(self._peer.name)
        self.ended.set()

    def prepare(self, transfer: Transfer, agent: NativeAgent, binding: Binding) -> TransferHandle:
        """Create NIXL's handle for a transfer."""
        source = self._ours[transfer.source].location
        target = self._peer.regions[transfer.region]
        segments = np.array(transfer.segments, dtype=np.uint64)
        return agent.createXferReq(
            binding.NIXL_WRITE,
            source.descriptors(binding, segments[:, 0], segments[:, 2]),
            target.descriptors(binding, segments[:, 1], segments[:, 2]),
            self._peer.name,
        )

    def finish(self, transfer: Transfer, error: TransportError | None, seconds: float) -> None:
        """A transfer has ended."""
        self._finish(transfer, error, seconds)


class _Write:
    def __init__(self, lane: NixlLane, transfer: Transfer) -> None:
        self._lane = lane
        self._transfer = transfer

    @property
    def given_up(self) -> bool:
        return self._transfer.given_up

    def prepare(self, agent: NativeAgent, binding: Binding) -> TransferHandle:
        return self._lane.prepare(self._transfer, agent, binding)

    def finish(self, error: TransportError | None, seconds: float) -> None:
        self._lane.finish(self._transfer, error, seconds)


class _Greeting:
    """Reads the peer's incarnation."""

    given_up = False

    def __init__(self, peer: RemoteAgent, done: Completion[None]) -> None:
        self._peer = peer
        self._done = done
        self._landing = HostMemory(bytearray(INCARNATION_BYTES))
        self._here = Location.of(self._landing)
        self._deregister: Callable[[], object] = lambda: None

    def prepare(self, agent: NativeAgent, binding: Binding) -> TransferHandle:
        agent.registerMem(self._here.registration(binding), [])
        self._deregister = lambda: agent.deregisterMem(self._here.registration(binding), [])
        offsets = np.zeros(1, dtype=np.uint64)
        lengths = np.full(1, INCARNATION_BYTES, dtype=np.uint64)
        return agent.createXferReq(
            binding.NIXL_READ,
            self._here.descriptors(binding, offsets, lengths),
            self._peer.identity.descriptors(binding, offsets, lengths),
            self._peer.name,
        )

    def finish(self, error: TransportError | None, seconds: float) -> None:
        del seconds
        self._deregister()
        found = bytes(self._landing.view)
        if error is not None:
            self._done.fail(error)
        elif found != self._peer.incarnation:
            self._done.fail(
                PeerStale(
                    f"nixl peer {self._peer.name} has restarted as {found.hex()}; get its new card"
                )
            )
        else:
            self._done.set(None)
