"""Landing regions in a device's memory: a region in, tensors of its own memory out.

What lands there is written by no stream: it is there before anybody is told. But whoever reads it
must have read it before the next KV cache may land, and a stream that decodes for other requests
would keep that waiting: reading has a stream of its own.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ("checked_tensor", "read_region")


def checked_tensor(region: torch.Tensor, needed: int) -> torch.Tensor:
    """The first ``needed`` bytes of ``region``.

    :raises ValueError: it is not uint8 in one run of bytes, or too small.
    """
    if region.dtype != torch.uint8 or region.dim() != 1 or not region.is_contiguous():
        raise ValueError(
            f"the region is {region.dtype} {list(region.shape)}; contiguous uint8 [bytes] is needed"
        )
    if region.nbytes < needed:
        raise ValueError(f"the region has {region.nbytes} bytes; {needed} are needed")
    return region[:needed]


def read_region(
    region: torch.Tensor, read: Callable[[], tuple[torch.Tensor, ...]]
) -> tuple[torch.Tensor, ...]:
    """What ``read`` makes of ``region``, which has been read when this returns.

    :param read: enqueues on the current stream, and returns tensors that are no views of it.
    """
    if not region.is_cuda:
        return read()
    using = torch.cuda.current_stream(region.device)
    reading = _reading(region.device)
    with torch.cuda.stream(reading):
        parts = read()
    done = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]  # torch
    done.record(reading)
    done.synchronize()
    for part in parts:
        # Else its memory would be taken for free while that stream still reads it.
        part.record_stream(using)
    return parts


@lru_cache(maxsize=8)
def _reading(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch
