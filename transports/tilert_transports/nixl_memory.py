"""Memory as NIXL sees it: an address, a length, a place.

In: regions and segments. Out: NIXL's registration and transfer lists.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from .errors import HandshakeMismatch, RegionInvalid

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .abc import DeviceBuffer, HostBuffer
    from .host_memory import HostMemory
    from .nixl_binding import Binding, Descriptors, MemoryKind, Registration

__all__ = ("HOST", "Location", "NixlMemory", "device_location")

HOST: Final = -1
"""A device number that means host memory."""


class Location(NamedTuple):
    """Where a piece of memory lies."""

    address: int
    nbytes: int
    device: int = HOST
    """The CUDA device's index, or ``HOST``."""

    @classmethod
    def of(cls, memory: HostMemory) -> Location:
        """Of host memory."""
        return cls(memory.address, memory.nbytes)

    def encode(self) -> str:
        """Place and address, for the card."""
        return f"{'host' if self.device == HOST else self.device}:{self.address}"

    @classmethod
    def decode(cls, text: str, nbytes: int) -> Location:
        """Back from ``encode``.

        :raises HandshakeMismatch: it is no such text.
        """
        place, _, address = text.partition(":")
        if not address.isdecimal() or not (place == "host" or place.isdecimal()):
            raise HandshakeMismatch(
                f"the peer's card: a region lies at {text!r}; 'host:ADDRESS' or 'DEVICE:ADDRESS'"
                " is needed"
            )
        return cls(int(address), nbytes, HOST if place == "host" else int(place))

    def kind(self, binding: Binding) -> MemoryKind:
        """NIXL's name for the place."""
        return binding.DRAM_SEG if self.device == HOST else binding.VRAM_SEG

    def registration(self, binding: Binding) -> Registration:
        """NIXL's list of this piece."""
        row = (self.address, self.nbytes, max(self.device, 0))
        return binding.nixlRegDList(self.kind(binding), np.array([row], dtype=np.uint64))

    def descriptors(
        self, binding: Binding, offsets: NDArray[np.uint64], lengths: NDArray[np.uint64]
    ) -> Descriptors:
        """NIXL's list of parts of this piece."""
        rows = np.empty((len(offsets), 3), dtype=np.uint64)
        rows[:, 0] = offsets + np.uint64(self.address)
        rows[:, 1] = lengths
        rows[:, 2] = max(self.device, 0)
        return binding.nixlXferDList(self.kind(binding), rows)


class NixlMemory(NamedTuple):
    """A registered region."""

    location: Location
    host: HostMemory | None
    """None on a device."""
    owner: object
    """Held, so that the memory stays."""

    @property
    def address(self) -> int:
        """Of its first byte."""
        return self.location.address

    @property
    def nbytes(self) -> int:
        """Its size."""
        return self.location.nbytes


def device_location(buffer: HostBuffer | DeviceBuffer) -> Location | None:
    """Where a tensor on a CUDA device lies; None for everything in host memory.

    :raises RegionInvalid: its elements are not contiguous, or there are none.
    """
    pointer = getattr(buffer, "data_ptr", None)
    if pointer is None:
        return None
    tensor: DeviceBuffer = buffer  # type: ignore[assignment]  # told by its pointer
    if tensor.get_device() < 0:
        return None
    nbytes = tensor.numel() * tensor.element_size()
    if not tensor.is_contiguous() or nbytes == 0:
        raise RegionInvalid(
            f"the tensor has {nbytes} bytes, contiguous: {tensor.is_contiguous()};"
            " a contiguous one of 1 byte or more is needed"
        )
    return Location(tensor.data_ptr(), nbytes, tensor.get_device())
