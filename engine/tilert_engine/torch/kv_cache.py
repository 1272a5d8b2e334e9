"""The KV cache as prefill hands it over: the only thing that prefill and decode share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__all__ = ("KVCache",)


@dataclass(frozen=True, slots=True)
class KVCache:
    """Keys and values of a whole prompt, each ``[layers, kv_heads, seq_len, head_dim]``.

    Keys are rotated already. Nobody writes to it once it is handed over. A seeded request needs
    nothing else to go on: its draws are numbered by the token's index (see ``Sampler``).
    """

    model: str
    """The checkpoint that computed it: equal shapes do not make equal models."""
    keys: torch.Tensor
    values: torch.Tensor

    @property
    def seq_len(self) -> int:
        """Tokens of the prompt."""
        return self.keys.shape[2]
