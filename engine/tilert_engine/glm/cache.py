"""The KV cache as prefill hands it over: bytes in vLLM's formats, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tilert_engine.layouts.mla_nsa_format import read_pages, read_rows

if TYPE_CHECKING:
    import torch

__all__ = ("GLMCache", "GLMLayers")


@dataclass(frozen=True, slots=True)
class GLMCache:
    """A whole prompt's caches, the draft layer's last. Nobody writes to it once handed over."""

    model: str
    """The checkpoint that computed it: equal shapes do not make equal models."""
    rows: torch.Tensor
    """uint8 ``[layers, seq_len, 656]`` (``fp8_ds_mla``) or ``[layers, seq_len, 1152]`` (bf16)."""
    pages: torch.Tensor
    """uint8 ``[layers, pages, 8448]``: the indexer's, 64 tokens each."""

    @property
    def seq_len(self) -> int:
        """Tokens of the prompt."""
        return self.rows.shape[1]

    def layers(self) -> GLMLayers:
        """The values: latents dequantised, indexer keys rotated as well."""
        latent, rope = read_rows(self.rows)
        return GLMLayers(self.model, latent, rope, read_pages(self.pages, self.seq_len))


@dataclass(frozen=True, slots=True)
class GLMLayers:
    """The same as values, bfloat16: what a decode engine imports."""

    model: str
    latent: torch.Tensor
    """``[layers, seq_len, 512]``"""
    rope: torch.Tensor
    """``[layers, seq_len, 64]``"""
    keys: torch.Tensor
    """``[layers, seq_len, 128]``, rotated by the Hadamard transform."""
