"""The contract that every transport keeps: one-sided writes between registered regions.

The receiving side registers regions and hands out its card; the writing side connects with that
card and writes plans. Offsets are inside regions, never addresses. Bytes, seconds; deadlines are on
the event loop's clock (``anyio.current_time()``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

from .errors import RegionInvalid

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Buffer

    from .plan import Plan

__all__ = (
    "ArrayBuffer",
    "Caps",
    "DeviceBuffer",
    "HostBuffer",
    "Peer",
    "Receipt",
    "Region",
    "Transport",
)


class ArrayBuffer(Protocol):
    """A numpy array: it has a buffer, which its types tell only from Python 3.12 on."""

    @property
    def __array_interface__(self) -> dict[str, object]: ...


HostBuffer: TypeAlias = "Buffer | ArrayBuffer"
"""Whatever ``memoryview`` takes."""


@dataclass(frozen=True, slots=True)
class Caps:
    """What a transport can do."""

    one_sided: bool
    """A write needs no instruction of the peer's process: it lands even while that one hangs."""
    zero_copy: bool
    """Bytes go from region to region without a stop in between."""
    hard_abort: bool
    """A write given up stops within milliseconds while the peer runs; else it runs to its end."""
    same_host_only: bool
    device_memory: bool
    """``register`` takes buffers on an accelerator."""
    max_descriptors: int
    """Segments that one plan may have after merging."""


@dataclass(frozen=True, slots=True)
class Region:
    """A registered range of memory, or a part of one; ours or a peer's."""

    id: int
    """Unique in its transport."""
    offset: int
    """Bytes from the beginning of the registered memory."""
    nbytes: int

    def part(self, offset: int, nbytes: int) -> Region:
        """The ``nbytes`` from ``offset`` on, inside this region: what a grant allows.

        :raises RegionInvalid: it would leave this region.
        """
        if offset < 0 or nbytes < 1 or offset + nbytes > self.nbytes:
            raise RegionInvalid(
                f"region {self.id}: a part of {nbytes} bytes at offset {offset} does not fit"
                f" into {self.nbytes} bytes"
            )
        return Region(self.id, self.offset + offset, nbytes)


@dataclass(frozen=True, slots=True, eq=False)
class Peer:
    """Another transport that ours is connected to. Two connections are two peers."""

    transport: str
    incarnation: str
    """32 hex digits, drawn anew each time the peer starts."""
    regions: Mapping[int, Region] = field(repr=False)
    """What may be written there, by region id."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """A finished write: every byte is visible to the peer."""

    nbytes: int
    segments: int
    """After merging."""
    seconds: float
    """From the first byte to the peer's visibility; waiting for other writes is not counted."""


class DeviceBuffer(Protocol):
    """The part of a ``torch.Tensor`` that registering needs."""

    def data_ptr(self) -> int:
        """The address of the first byte."""
        ...

    def get_device(self) -> int:
        """The CUDA device's index; -1 for host memory."""
        ...

    def element_size(self) -> int:
        """Bytes an element."""
        ...

    def numel(self) -> int:
        """Elements."""
        ...

    def is_contiguous(self) -> bool:
        """Whether the elements lie in one piece."""
        ...


@runtime_checkable
class Transport(Protocol):
    """One end. Made in no event loop in particular, used in one."""

    @property
    def name(self) -> str:
        """As the registry knows it."""
        ...

    @property
    def caps(self) -> Caps:
        """What it can do."""
        ...

    async def allocate(self, nbytes: int) -> Region:
        """A new region of host memory that peers can write to, pre-faulted.

        It lives as long as the transport. Register before ``card``: later ones are not on it.
        """
        ...

    async def register(self, buffer: HostBuffer | DeviceBuffer) -> Region:
        """Make memory of the caller a region; the buffer is held as long as the transport lives.

        :raises RegionInvalid: not writable, not contiguous, empty, or of a kind that this
            transport cannot use.
        """
        ...

    def view(self, region: Region) -> memoryview:
        """The bytes of a region of ours in host memory.

        :raises RegionInvalid: unknown, out of range, or on a device.
        """
        ...

    def card(self) -> bytes:
        """What a peer needs to connect, opaque. Whoever has it can write to every region on it.

        :raises TransportClosed: the transport has been closed.
        """
        ...

    async def connect(self, card: bytes, *, timeout: float) -> Peer:  # noqa: ASYNC109 - bounds more than a wait
        """Connect with a peer's card within ``timeout`` seconds.

        :raises HandshakeMismatch: damaged, of another transport or version, or out of reach.
        :raises PeerStale: the peer has restarted since.
        :raises PeerLost: nobody answers there.
        :raises DeadlineExceeded: no answer in time.
        """
        ...

    async def write(
        self, peer: Peer, source: Region, target: Region, plan: Plan, *, deadline: float
    ) -> Receipt:
        """Copy the plan's rows from ``source`` (ours) to ``target`` (the peer's).

        Row offsets are relative to the two regions, and stay inside them. Returns when all bytes
        are visible to the peer. Writes to one peer may finish in any order. On cancellation and
        at the deadline the write is given up: ``drain`` says when none of it can land any more.

        :raises PlanInvalid: a row leaves its region, or there are too many.
        :raises RegionInvalid: a region is unknown.
        :raises PeerStale: the peer has restarted.
        :raises PeerLost: the peer has gone.
        :raises TransferFailed: the transport reports a failure.
        :raises DeadlineExceeded: not finished in time.
        :raises TransportClosed: closed or disconnected before it was finished.
        """
        ...

    async def drain(self, peer: Peer, *, timeout: float) -> bool:  # noqa: ASYNC109 - bounds more than a wait
        """Wait until no byte of the writes given up so far can land any more.

        False: ``timeout`` seconds passed, or the connection broke so that nobody can know. The
        ranges then stay out of use until the peer's process has ended.
        """
        ...

    async def disconnect(self, peer: Peer) -> None:
        """End the connection; only after ``drain``. Open writes fail with ``TransportClosed``."""
        ...

    async def aclose(self) -> None:
        """Disconnect from all peers and stop being written to. Idempotent."""
        ...
