"""Host memory that a CUDA device reads by itself: bytes of a process in, page-locked ones out.

A device reads page-locked memory at the full rate of its bus while the host goes on; anything else
the driver first copies piece by piece, on the thread that asks. Locking takes long, so it is done
once, for memory that lives as long as the process serves.

The calls are the CUDA runtime's own (its reference, "Memory Management"): torch offers no copy of
runs that lie evenly apart.
"""

from __future__ import annotations

import ctypes
import logging
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

__all__ = ("copy_runs", "page_locked")

logger = logging.getLogger(__name__)

_PORTABLE: Final = 1
"""``cudaHostRegisterPortable``: locked for every device's context."""
_HOST_TO_DEVICE: Final = 1
"""``cudaMemcpyHostToDevice``"""
_POINTER: Final = ctypes.c_void_p
_SIZE: Final = ctypes.c_size_t


@contextmanager
def page_locked(memory: memoryview, device: torch.device) -> Generator[None]:
    """Within it, ``memory`` (writable bytes, all pages present) is locked, if ``device`` is CUDA.

    Where the driver refuses, it stays as it is, and a warning says that copies will be slower.
    """
    if device.type != "cuda":
        yield
        return
    address = torch.frombuffer(memory, dtype=torch.uint8).data_ptr()
    runtime = _runtime()
    refused = "there is no CUDA runtime to ask" if runtime is None else None
    if runtime is not None:
        with torch.cuda.device(device):
            refused = runtime.lock(address, memory.nbytes)
    if refused is not None:
        logger.warning(
            "%.1f GB of host memory cannot be page-locked for %s (%s): KV caches will be imported"
            " at a fraction of the bus's rate",
            memory.nbytes / 1e9,
            device,
            refused,
        )
    try:
        yield
    finally:
        if runtime is not None and refused is None:
            # What the device still reads of it must have been read.
            torch.cuda.synchronize(device)
            runtime.unlock(address)


def copy_runs(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copy ``source`` from the host to ``target`` on a device, on the current stream.

    :param target: ``[n, …]``, contiguous.
    :param source: of the same shape and dtype. Where each ``source[i]`` is one run of bytes and the
        memory is page-locked, all of it is one copy, and nothing is waited for.
    :raises RuntimeError: the runtime refuses.
    """
    runtime = _runtime() if source[0].is_contiguous() and source.is_pinned() else None
    if runtime is None:
        for run, place in zip(source, target, strict=True):
            place.copy_(run, non_blocking=True)
    else:
        runtime.copy(target, source)


class _Runtime:
    """The CUDA runtime that torch has loaded."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._lock, self._unlock = library.cudaHostRegister, library.cudaHostUnregister
        self._copy, self._forget = library.cudaMemcpy2DAsync, library.cudaGetLastError
        self._lock.argtypes = (_POINTER, _SIZE, ctypes.c_uint)
        self._unlock.argtypes = (_POINTER,)
        self._copy.argtypes = (
            *(_POINTER, _SIZE),
            *(_POINTER, _SIZE),
            *(_SIZE, _SIZE),
            *(ctypes.c_int, _POINTER),
        )

    def lock(self, address: int, nbytes: int) -> str | None:
        """None, or why not."""
        return self._failure(self._lock(address, nbytes, _PORTABLE))

    def unlock(self, address: int) -> None:
        self._failure(self._unlock(address))

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        nbytes, count = source[0].nbytes, source.shape[0]
        apart = max(nbytes, source.stride(0) * source.element_size())
        stream = torch.cuda.current_stream(target.device).cuda_stream
        places = (target.data_ptr(), nbytes, source.data_ptr(), apart)
        failure = self._failure(self._copy(*places, nbytes, count, _HOST_TO_DEVICE, stream))
        if failure is not None:
            raise RuntimeError(f"{count} runs of {nbytes} B cannot be copied to CUDA: {failure}")

    def _failure(self, code: int) -> str | None:
        if not code:
            return None
        # The runtime keeps it, and torch would take it for a failure of its next kernel.
        self._forget()
        return f"CUDA error {code}"


@lru_cache(maxsize=1)
def _runtime() -> _Runtime | None:
    for name in (None, *_loaded()):
        library = ctypes.CDLL(name)
        if hasattr(library, "cudaMemcpy2DAsync"):
            return _Runtime(library)
    return None


def _loaded() -> Iterator[str]:
    """Where the runtime lies, if torch has not loaded it for all of the process to see."""
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        if "libcudart.so" in line:
            yield line.split(maxsplit=5)[-1]
