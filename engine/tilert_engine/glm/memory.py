"""What attention reads: latents and indexer keys of a sequence, as values rather than bytes.

In: what a layer computes for new tokens, or a prompt's imported cache. Out: rows that every layer's
attention gathers from. What decode computes itself it keeps unrounded: if it were rounded as a
cache's bytes are, a difference in the last bit of a sum, as between one token and four at once,
could become one of the ninth, and answers would depend on how many drafts a step verifies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tilert_engine.layouts.mla_nsa_format import (
    hadamard,
    new_pages,
    new_rows,
    read_pages,
    read_rows,
    write_pages,
    write_rows,
)
from tilert_engine.layouts.mla_nsa_model import INDEXER, LATENT, ROPE
from tilert_engine.torch.places import Span

if TYPE_CHECKING:
    from tilert_engine.layouts.mla_nsa_cache import ImportedKV
    from tilert_engine.layouts.mla_nsa_model import CacheDtype
    from tilert_engine.models.glm_config import GLMConfig
    from tilert_engine.torch.places import Places

    from .weights import GLMWeights

__all__ = ("Memory", "PagedMemory")


class Memory:
    """Room for ``positions`` tokens of one sequence, in the dtype that is computed in."""

    def __init__(self, config: GLMConfig, weights: GLMWeights, positions: int) -> None:
        layers, dtype, device = config.cache_layers, weights.dtype, weights.device
        self.rows = torch.zeros(layers, positions, LATENT + ROPE, dtype=dtype, device=device)
        """``[layers, positions, 576]``: latent, then the shared key's rope."""
        self.keys = torch.zeros(layers, positions, INDEXER, dtype=dtype, device=device)
        """``[layers, positions, 128]``: indexer keys, rotated by the Hadamard transform."""

    def write(
        self,
        layer: int,
        places: Places,
        latent: torch.Tensor,
        rope: torch.Tensor,
        key: torch.Tensor,
    ) -> None:
        """Keep new tokens' ``latent`` ``[n, 512]``, ``rope`` ``[n, 64]``, ``key`` ``[n, 128]``."""
        places.put(self.rows[layer, :, :LATENT], latent)
        places.put(self.rows[layer, :, LATENT:], rope)
        places.put(self.keys[layer], hadamard(key))

    def fill(self, imported: ImportedKV) -> None:
        """Take a prompt's whole cache, from position 0 on; what is behind it becomes zero.

        A step that reads a window of fixed size multiplies what it must not see by zero, and a NaN
        that an earlier sequence has left there would come through.
        """
        length = imported.seq_len
        self.rows[:, :length, :LATENT] = imported.kv
        self.rows[:, :length, LATENT:] = imported.pe
        self.keys[:, :length] = imported.ki
        self.rows[:, length:].zero_()
        self.keys[:, length:].zero_()


class PagedMemory(Memory):
    """Prefill's: beside it vLLM's caches in bytes, and every value read is one read from them."""

    def __init__(
        self, config: GLMConfig, weights: GLMWeights, positions: int, dtype: CacheDtype
    ) -> None:
        super().__init__(config, weights, positions)
        self.latent_cache = new_rows(config.cache_layers, positions, dtype, weights.device)
        self.index_cache = new_pages(config.cache_layers, positions, weights.device)

    def write(
        self,
        layer: int,
        places: Places,
        latent: torch.Tensor,
        rope: torch.Tensor,
        key: torch.Tensor,
    ) -> None:
        """As ``Memory.write``, rounded to what the caches hold.

        :raises TypeError: the host does not know the positions.
        """
        if not isinstance(places, Span):
            raise TypeError(f"prefill writes a Span of positions, not a {type(places).__name__}")
        start, stop = places.start, places.stop
        write_rows(self.latent_cache[layer], start, latent, rope)
        write_pages(self.index_cache[layer], start, key)
        kept, turned = read_rows(self.latent_cache[layer, start:stop])
        self.rows[layer, start:stop, :LATENT] = kept
        self.rows[layer, start:stop, LATENT:] = turned
        self.keys[layer, start:stop] = read_pages(self.index_cache[layer], stop)[start:]
