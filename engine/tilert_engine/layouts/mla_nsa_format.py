"""The bytes of vLLM's MLA and indexer caches: values → bytes when prefill writes, and back.

All functions work on any number of leading dimensions, on CPU and CUDA, and read nothing back to
the host. Byte tensors are uint8 and may be strided views, as long as a row or page is one run.

* A latent row: 512 fp8 e4m3, 4 fp32 scales (one for 128 values), 64 bf16 of rope: 656 bytes
  (``concat_and_cache_ds_mla_kernel`` in vLLM's ``csrc/cache_kernels.cu``); or 576 bf16: 1152 bytes.
* An indexer page: 64 × 128 fp8 e4m3, then 64 fp32 scales, powers of two: 8448 bytes
  (``indexer_k_quant_and_cache_kernel`` there, with ``scale_fmt`` ``ue8m0``).
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import torch

from .mla_nsa_model import (
    BLOCK,
    INDEXER,
    LATENT,
    PAGE_BYTES,
    PAGE_TOKENS,
    PAGE_VALUE_BYTES,
    ROPE_BYTES,
    row_bytes,
)

if TYPE_CHECKING:
    from .mla_nsa_model import CacheDtype

__all__ = (
    "dequantise_keys",
    "dequantise_latent",
    "hadamard",
    "new_pages",
    "new_rows",
    "pages_of",
    "quantise_keys",
    "quantise_latent",
    "read_latent",
    "read_pages",
    "read_rows",
    "write_pages",
    "write_rows",
)

_FP8: Final = torch.float8_e4m3fn
_FP8_MAX: Final = 448.0
_SMALLEST_SCALE: Final = torch.finfo(torch.float32).tiny
_SMALLEST_KEY: Final = 1e-4
_NORM: Final = 1 / math.sqrt(INDEXER)


def quantise_latent(latent: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Latent ``[…, 512]`` → fp8 ``[…, 512]`` and scales ``[…, 4]`` fp32, as vLLM's kernel."""
    blocks = _split(latent.float(), BLOCK)
    scales = (blocks.abs().amax(-1) / _FP8_MAX).clamp_min(_SMALLEST_SCALE)
    return (blocks / scales.unsqueeze(-1)).to(_FP8).flatten(-2), scales


def dequantise_latent(
    values: torch.Tensor,
    scales: torch.Tensor,
    dtype: torch.dtype = torch.bfloat16,
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """fp8 ``[…, 512]`` and scales ``[…, 4]`` → latent ``[…, 512]``, rounded once, to ``dtype``.

    :param out: where to; its dtype counts then.
    """
    # Exact in either. bfloat16 is half the way through a device's memory; a CPU would pay for the
    # conversion twice.
    exact = values.to(torch.bfloat16 if values.is_cuda else torch.float32)
    taken = _target(out, values.shape, dtype, values.device)
    torch.mul(_split(exact, BLOCK), scales.unsqueeze(-1), out=_split(taken, BLOCK))
    return taken


def quantise_keys(keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Indexer keys ``[…, 128]`` → fp8 ``[…, 128]`` and scales ``[…]`` fp32, powers of two."""
    exact = keys.float()
    scales = exact.abs().amax(-1).clamp_min(_SMALLEST_KEY) / _FP8_MAX
    # Up to the next power of two on the exponent's bits: log2 and exp2 round differently on each
    # device, and prefill's bytes must not depend on it.
    scales = ((scales.view(torch.int32) + 0x7FFFFF) & 0x7F800000).view(torch.float32)
    return (exact / scales.unsqueeze(-1)).to(_FP8), scales


def dequantise_keys(
    values: torch.Tensor,
    scales: torch.Tensor,
    dtype: torch.dtype = torch.bfloat16,
    *,
    rotate: bool = True,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """fp8 ``[…, 128]`` and scales ``[…]`` → indexer keys ``[…, 128]``, rounded once, to ``dtype``.

    :param values: or fp32 that came from fp8.
    :param rotate: by the Hadamard transform, as the decode engine's queries are.
    :param out: where to; its dtype counts then.
    """
    exact = values.float()
    if rotate:
        # The sum of fp8 values times ±1 is exact to fp32's last bits, TF32 or not; scaling by the
        # token's own factors afterwards is the same rotation, because it is linear.
        exact = exact @ _signs(exact.device)
        scales = scales * _NORM
    taken = _target(out, exact.shape, dtype, exact.device)
    return torch.mul(exact, scales.unsqueeze(-1), out=taken)


def hadamard(values: torch.Tensor) -> torch.Tensor:
    """Rotate ``[…, 128]`` by the Hadamard transform (natural order) times ``128 ** -0.5``.

    It is its own inverse, and leaves inner products as they are. Computed in fp32, rounded once.
    """
    rotated = values.float() @ _signs(values.device) * _NORM
    return rotated.to(values.dtype)


def write_rows(rows: torch.Tensor, start: int, latent: torch.Tensor, rope: torch.Tensor) -> None:
    """Write tokens from ``start`` on into latent rows.

    :param rows: uint8 ``[…, tokens, 656]`` or ``[…, tokens, 1152]``: the stride decides the dtype.
    :param latent: ``[…, n, 512]``.
    :param rope: ``[…, n, 64]``, rotated.
    """
    target = rows[..., start : start + latent.shape[-2], :]
    if target.shape[-1] == row_bytes("bf16"):
        target.view(torch.bfloat16)[..., :LATENT] = latent.to(torch.bfloat16)
    else:
        values, scales = quantise_latent(latent)
        target[..., :LATENT] = values.view(torch.uint8)
        target[..., LATENT:-ROPE_BYTES].view(torch.float32).copy_(scales)
    target[..., -ROPE_BYTES:].view(torch.bfloat16).copy_(rope)


def read_rows(
    rows: torch.Tensor, dtype: torch.dtype = torch.bfloat16
) -> tuple[torch.Tensor, torch.Tensor]:
    """Latent rows uint8 ``[…, tokens, 656 or 1152]`` → latent ``[…, 512]`` and rope ``[…, 64]``."""
    latent, rope = rows[..., :-ROPE_BYTES], rows[..., -ROPE_BYTES:]
    return read_latent(latent, dtype), rope.view(torch.bfloat16).to(dtype)


def read_latent(
    plane: torch.Tensor, dtype: torch.dtype = torch.bfloat16, *, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Latents without their rope, uint8 ``[…, 528 or 1024]`` → ``[…, 512]``.

    :param out: where to; its dtype counts then.
    """
    if plane.shape[-1] == LATENT * 2:
        values = plane.view(torch.bfloat16)
        return values.to(dtype) if out is None else out.copy_(values)
    scales = plane[..., LATENT:].view(torch.float32)
    return dequantise_latent(plane[..., :LATENT].view(_FP8), scales, dtype, out=out)


def write_pages(pages: torch.Tensor, start: int, keys: torch.Tensor) -> None:
    """Write the indexer keys of tokens from ``start`` on into pages.

    :param pages: uint8 ``[…, pages, 8448]``.
    :param keys: ``[…, n, 128]``, not rotated.
    """
    values, scales = quantise_keys(keys)
    token = torch.arange(start, start + keys.shape[-2], device=pages.device)
    page, slot = token // PAGE_TOKENS, token % PAGE_TOKENS
    page_values, page_scales = _page_views(pages)
    page_values[..., page, slot, :] = values.view(torch.uint8)
    page_scales[..., page, slot] = scales


def read_pages(
    pages: torch.Tensor,
    tokens: int,
    dtype: torch.dtype = torch.bfloat16,
    *,
    rotate: bool = True,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """The first ``tokens`` indexer keys of pages uint8 ``[…, pages, 8448]`` → ``[…, tokens, 128]``.

    :param rotate: by the Hadamard transform, as the decode engine's queries are.
    :param out: where to; its dtype counts then.
    """
    values, scales = _page_views(pages)
    # Widened first: pages are apart, so that putting them together is a copy in any case.
    keys = values.view(_FP8).float().flatten(-3, -2)[..., :tokens, :]
    factors = scales.flatten(-2)[..., :tokens]
    return dequantise_keys(keys, factors, dtype, rotate=rotate, out=out)


def pages_of(tokens: int) -> int:
    """Indexer pages that ``tokens`` tokens take."""
    return -(-tokens // PAGE_TOKENS)


def new_rows(layers: int, tokens: int, dtype: CacheDtype, device: torch.device) -> torch.Tensor:
    """Empty latent rows, uint8 ``[layers, tokens, 656 or 1152]``."""
    return torch.zeros(layers, tokens, row_bytes(dtype), dtype=torch.uint8, device=device)


def new_pages(layers: int, tokens: int, device: torch.device) -> torch.Tensor:
    """Empty indexer pages, uint8 ``[layers, pages, 8448]``."""
    return torch.zeros(layers, pages_of(tokens), PAGE_BYTES, dtype=torch.uint8, device=device)


def _page_views(pages: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Values uint8 ``[…, pages, 64, 128]`` and scales fp32 ``[…, pages, 64]``: views."""
    values = _split(pages[..., :PAGE_VALUE_BYTES], INDEXER)
    return values, pages[..., PAGE_VALUE_BYTES:].view(torch.float32)


def _target(
    out: torch.Tensor | None, shape: torch.Size, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device=device) if out is None else out


def _split(values: torch.Tensor, width: int) -> torch.Tensor:
    """The last dimension ``[n * width]`` as ``[n, width]``: a view."""
    return values.view(*values.shape[:-1], values.shape[-1] // width, width)


@lru_cache(maxsize=8)
def _signs(device: torch.device) -> torch.Tensor:
    """The 128 × 128 matrix of ±1 that ``H[2n] = [[H, H], [H, −H]]`` builds up from ``[[1]]``."""
    # An ordinary tensor even where the first caller is in inference mode: a trainer may be next.
    with torch.inference_mode(mode=False):
        matrix = torch.ones(1, 1, device=device)
        while matrix.shape[0] < INDEXER:
            matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)))
        return matrix
