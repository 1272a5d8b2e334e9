"""Memory that two processes share: a sealed memfd, mapped.

In: a size, or a descriptor that a peer has sent. Out: a mapping. The seals forbid any change of
size, or a peer that shrinks its file would kill whoever touches the mapping.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from typing import Final

from .errors import HandshakeMismatch, RegionInvalid
from .host_memory import HostMemory, prefault

__all__ = ("SharedMemory", "map_shared")

SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class SharedMemory(HostMemory):
    """A region that can be mapped elsewhere, through ``fd``."""

    __slots__ = ("fd",)

    def __init__(self, nbytes: int) -> None:
        if nbytes < 1:
            raise RegionInvalid(f"nbytes is {nbytes}; 1 or more is needed")
        self.fd = os.memfd_create("tilert-kv", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.fd, nbytes)
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, SEALS)
            super().__init__(mmap.mmap(self.fd, nbytes))
        except BaseException:
            os.close(self.fd)
            raise

    def close_fd(self) -> None:
        """Let go of the descriptor; mappings stay."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def map_shared(fd: int, nbytes: int) -> HostMemory:
    """Map a peer's region, every page of it; ``fd`` stays the caller's.

    :raises HandshakeMismatch: it is smaller than said, or could shrink under us.
    """
    size = os.fstat(fd).st_size
    seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    if size < nbytes or not seals & fcntl.F_SEAL_SHRINK:
        raise HandshakeMismatch(
            f"the peer's shared memory has {size} bytes and seals {seals:#x};"
            f" {nbytes} bytes and F_SEAL_SHRINK ({fcntl.F_SEAL_SHRINK:#x}) are needed"
        )
    memory = HostMemory(mmap.mmap(fd, nbytes))
    prefault(memory)
    return memory
