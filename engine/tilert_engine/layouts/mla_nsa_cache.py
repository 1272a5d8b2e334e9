"""A prompt's KV cache in its three forms: as prefill writes it, on the wire, as decode takes it.

``CachedKV`` (vLLM's rows and pages) → ``WirePlanes`` (bytes in a staging or a region) →
``ImportedKV`` (numbers, indexer keys rotated).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from tilert_stream.errors import EngineFault

from .mla_nsa_device import import_to_cuda
from .mla_nsa_format import read_latent, read_pages
from .mla_nsa_model import INDEXER, LATENT, ROPE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = (
    "CachedKV",
    "ImportedKV",
    "WirePlanes",
    "import_keys",
    "import_latents",
    "import_planes",
    "import_rope",
    "refuse_nan",
)


class WirePlanes(NamedTuple):
    """Views of a staging buffer or of a region, uint8, for the tokens of one prompt."""

    kv: torch.Tensor
    """Latents with their scales: ``[layers, seq_len, 528 or 1024]``."""
    pe: torch.Tensor
    """Rope: ``[layers, seq_len, 128]``."""
    ki: torch.Tensor
    """Indexer pages: ``[layers, pages, 8448]``, whole ones."""


@dataclass(frozen=True, slots=True, eq=False)
class CachedKV:
    """What a prefill engine hands over, in vLLM's cache formats; tokens and pages in order.

    Nobody writes to it once it is handed over.
    """

    model: str
    """The checkpoint that computed it: equal shapes do not make equal models."""
    rows: torch.Tensor
    """uint8 ``[layers, seq_len, 656 or 1152]``."""
    pages: torch.Tensor
    """uint8 ``[layers, pages, 8448]``; what lies beyond ``seq_len`` is zero."""

    @property
    def seq_len(self) -> int:
        """Tokens of the prompt."""
        return self.rows.shape[1]

    @property
    def planes(self) -> WirePlanes:
        """The same bytes as planes: views."""
        latent, rope = self.rows[..., :-ROPE_BYTES], self.rows[..., -ROPE_BYTES:]
        return WirePlanes(latent, rope, self.pages)


@dataclass(frozen=True, slots=True, eq=False)
class ImportedKV:
    """What a decode engine reads, in one dtype and on one device. Nobody writes to it."""

    model: str
    """The checkpoint that computed it."""
    ki: torch.Tensor
    """Indexer keys, rotated: ``[layers, seq_len, 128]``."""
    kv: torch.Tensor
    """Latents: ``[layers, seq_len, 512]``."""
    pe: torch.Tensor
    """Rope: ``[layers, seq_len, 64]``."""

    @property
    def seq_len(self) -> int:
        """Tokens of the prompt."""
        return self.kv.shape[1]

    def to(self, device: torch.device) -> ImportedKV:
        """The same on ``device``; itself where it is there."""
        if self.kv.device == device:
            return self
        moved = (each.to(device) for each in (self.ki, self.kv, self.pe))
        return ImportedKV(self.model, *moved)

    def layers(self) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """``(ki, kv, pe)`` of each layer, as TileRT's ``inject_cache`` takes them."""
        return zip(self.ki, self.kv, self.pe, strict=True)


def import_planes(
    model: str,
    planes: WirePlanes,
    *,
    dtype: torch.dtype = torch.bfloat16,
    device: torch.device | None = None,
) -> ImportedKV:
    """Dequantise latents and indexer keys, and rotate the latter.

    Values that are stored as ``dtype`` on ``device`` already are views of ``planes``. From the host
    to CUDA all of it is enqueued, the current stream sees it, and ``planes`` have been read.

    :param device: None: where the planes are.
    """
    device = planes.kv.device if device is None else device
    if device.type == "cuda" and planes.kv.device.type == "cpu":
        return ImportedKV(model, *import_to_cuda(planes, dtype, device))
    return ImportedKV(
        model,
        import_keys(planes.ki, planes.kv.shape[1], dtype, device),
        import_latents(planes.kv, dtype, device),
        import_rope(planes.pe, dtype, device),
    )


def import_latents(plane: torch.Tensor, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """The kv plane ``[layers, seq_len, 528 or 1024]`` → latents ``[layers, seq_len, 512]``."""
    if plane.shape[-1] == LATENT * 2:
        return import_rope(plane, dtype, device)
    return _by_layer(plane, (plane.shape[1], LATENT), dtype, device, read_latent)


def import_keys(
    plane: torch.Tensor, seq_len: int, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """The ki plane ``[layers, pages, 8448]`` → rotated keys ``[layers, seq_len, 128]``."""

    def read(pages: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return read_pages(pages, seq_len, dtype)

    return _by_layer(plane, (seq_len, INDEXER), dtype, device, read)


def import_rope(plane: torch.Tensor, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A plane of bf16 values, uint8 ``[layers, seq_len, 2 n]`` → ``[layers, seq_len, n]``."""
    values = plane.view(torch.bfloat16)
    if (values.dtype, values.device) == (dtype, device):
        return values
    shape = (values.shape[1], values.shape[2])
    return _by_layer(values, shape, dtype, device, torch.Tensor.to)


def refuse_nan(imported: ImportedKV) -> None:
    """Refuse a cache that has a value which is not finite. On CUDA this waits for the import.

    :raises ~tilert_stream.errors.EngineFault: the first such plane, layer and token.
    """
    for plane, values in (("ki", imported.ki), ("kv", imported.kv), ("pe", imported.pe)):
        finite = torch.isfinite(values).all(-1)
        if not finite.all():
            layer, token = (int(index) for index in torch.nonzero(~finite)[0])
            raise EngineFault(
                f"the imported KV cache is not finite: plane {plane}, layer {layer}, token {token};"
                " prefill computed it so, or it was damaged on its way; try again"
            )


def _by_layer(
    plane: torch.Tensor,
    shape: tuple[int, int],
    dtype: torch.dtype,
    device: torch.device,
    read: Callable[[torch.Tensor, torch.dtype], torch.Tensor],
) -> torch.Tensor:
    """Layer by layer: each is one run of bytes in a region, and the fp32 in between stays small."""
    out = torch.empty(plane.shape[0], *shape, dtype=dtype, device=device)
    for target, source in zip(out, plane, strict=True):
        target.copy_(read(source.to(device, non_blocking=True), dtype))
    return out
