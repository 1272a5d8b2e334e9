"""Host memory as transports see it: an address, a length, and every page present.

In: a buffer of the caller, or a size. Out: ``HostMemory``, pre-faulted. The first write to a fresh
page costs five to twenty times a later one, so it is paid at registration and never by a request.
"""

from __future__ import annotations

import ctypes
import mmap
from typing import TYPE_CHECKING, Final

from .errors import RegionInvalid

if TYPE_CHECKING:
    from .abc import DeviceBuffer, HostBuffer

__all__ = ("HostMemory", "copy_bytes", "host_view", "prefault")

MADV_POPULATE_WRITE: Final = 23
"""Linux 5.14 and later: fault pages in for writing, contents unchanged."""

COPY_HOLDING_THE_GIL: Final = 32 << 10
"""Bytes that are copied faster than the interpreter's lock is let go and taken again."""

_libc = ctypes.CDLL(None, use_errno=True)
_madvise = _libc.madvise
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_madvise.restype = ctypes.c_int

_memmove_releasing = ctypes.memmove
_memmove_holding = ctypes.PyDLL(None).memmove
_memmove_holding.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_memmove_holding.restype = ctypes.c_void_p


class HostMemory:
    """A writable, contiguous buffer with a fixed address for as long as this object lives.

    :raises RegionInvalid: the buffer is read-only, strided or empty.
    """

    __slots__ = ("_pin", "address", "nbytes", "view")

    def __init__(self, buffer: HostBuffer | DeviceBuffer) -> None:
        view = host_view(buffer)
        if view.readonly:
            raise RegionInvalid("the buffer is read-only; a writable one is needed")
        if not view.c_contiguous:
            raise RegionInvalid("the buffer is strided; a contiguous one is needed")
        if view.nbytes == 0:
            raise RegionInvalid("the buffer has 0 bytes; 1 or more are needed")
        self.view = view.cast("B")
        self.nbytes = view.nbytes
        # Holding this keeps the exporter from moving its memory.
        self._pin = ctypes.c_char.from_buffer(self.view)
        self.address = ctypes.addressof(self._pin)

    @classmethod
    def anonymous(cls, nbytes: int) -> HostMemory:
        """Fresh private memory.

        :raises RegionInvalid: ``nbytes`` is less than 1.
        """
        if nbytes < 1:
            raise RegionInvalid(f"nbytes is {nbytes}; 1 or more is needed")
        return cls(mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


def prefault(memory: HostMemory) -> None:
    """Make every page of ``memory`` present, contents unchanged. Blocks: seconds for many GB."""
    begin = memory.address - memory.address % mmap.PAGESIZE
    length = memory.address + memory.nbytes - begin
    _madvise(begin, length, mmap.MADV_HUGEPAGE)
    if _madvise(begin, length, MADV_POPULATE_WRITE) != 0:
        # An older kernel: each byte is rewritten as it is, in one call that no thread can part.
        for offset in range(0, memory.nbytes, mmap.PAGESIZE):
            _memmove_holding(memory.address + offset, memory.address + offset, 1)


def copy_bytes(target: int, source: int, nbytes: int) -> None:
    """Copy between two addresses; other threads run meanwhile unless it is soon over."""
    if nbytes > COPY_HOLDING_THE_GIL:
        _memmove_releasing(target, source, nbytes)
    else:
        _memmove_holding(target, source, nbytes)


def host_view(buffer: HostBuffer | DeviceBuffer) -> memoryview:
    """The bytes of a buffer in host memory.

    :raises RegionInvalid: it has none.
    """
    try:
        return memoryview(buffer)  # type: ignore[arg-type]  # the TypeError is the answer
    except TypeError as error:
        raise RegionInvalid(
            f"a {type(buffer).__name__} has no buffer in host memory: give a CPU tensor's numpy(),"
            " or use nixl for a tensor on a device"
        ) from error
