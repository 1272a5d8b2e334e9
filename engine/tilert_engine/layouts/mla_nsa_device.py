"""A prompt's KV cache from the host into a CUDA device: wire planes in, ``ImportedKV`` out.

Bytes go over on a stream of their own, some layers at a time, one copy a plane, while the layers
before them are dequantised on the current stream: the import takes as long as its bytes take to
travel.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

import torch

from .host_memory import copy_runs
from .mla_nsa_format import read_latent, read_pages
from .mla_nsa_model import INDEXER, LATENT, ROPE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .mla_nsa_cache import WirePlanes

__all__ = ("import_to_cuda",)

_GROUP: Final = 8
"""Layers at a time, at most: enough that the calls of one group take less time than its bytes."""
_LEAST: Final = 2
"""Layers at a time towards the end: what is computed after the last byte has come is short."""
_STAGINGS: Final = 2


def import_to_cuda(
    planes: WirePlanes, dtype: torch.dtype, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Import host ``planes``. Waits until their bytes have been read, and for nothing else.

    :returns: ki ``[layers, seq_len, 128]``, kv ``[layers, seq_len, 512]``, pe
        ``[layers, seq_len, 64]``, of ``dtype``, ready on the current stream.
    """
    layers, tokens = planes.kv.shape[:2]

    def empty(width: int) -> torch.Tensor:
        return torch.empty(layers, tokens, width, dtype=dtype, device=device)

    ki, kv, pe = empty(INDEXER), empty(LATENT), empty(ROPE)
    stagings = [_staging(planes, device) for _ in range(_STAGINGS)]
    computing, copying = torch.cuda.current_stream(device), _copying(device)
    # The stagings' memory may have had another use on the current stream a moment ago.
    copying.wait_stream(computing)
    read: list[torch.cuda.Event] = []
    for number, group in enumerate(_groups(layers)):
        staging = stagings[number % _STAGINGS]
        here = slice(0, group.stop - group.start)
        latents, rope, pages = (plane[here] for plane in staging)
        with torch.cuda.stream(copying):
            if number >= _STAGINGS:
                copying.wait_event(read[number - _STAGINGS])
            for source, target in zip(planes, (latents, rope, pages), strict=True):
                copy_runs(target, source[group])
        computing.wait_stream(copying)
        read_latent(latents, out=kv[group])
        pe[group] = rope.view(torch.bfloat16)
        read_pages(pages, tokens, out=ki[group])
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch
        done.record(computing)
        read.append(done)
    # Whose bytes they were may write over them now.
    left = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]  # torch
    left.record(copying)
    left.synchronize()
    return ki, kv, pe


def _groups(layers: int) -> Iterator[slice]:
    first = 0
    while first < layers:
        left = layers - first
        count = min(_GROUP, max(_LEAST, left // 2), left)
        yield slice(first, first + count)
        first += count


def _staging(planes: WirePlanes, device: torch.device) -> list[torch.Tensor]:
    return [
        torch.empty(_GROUP, *plane.shape[1:], dtype=torch.uint8, device=device) for plane in planes
    ]


@lru_cache(maxsize=8)
def _copying(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch
