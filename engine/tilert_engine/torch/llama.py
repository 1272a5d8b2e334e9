"""The Llama forward pass: token ids and a KV buffer in, logits out; new K and V into the buffer.

Stateless: what a sequence has computed lies in its ``KVBuffer``. The same code runs a chunk of a
prompt and a single decode step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn import functional as nn

from .linear import linear
from .places import span
from .rope import RopeTable

if TYPE_CHECKING:
    from .checkpoint import Checkpoint
    from .places import Places
    from .weights import LayerWeights

__all__ = ("KVBuffer", "Llama")


@dataclass(frozen=True, slots=True)
class KVBuffer:
    """One sequence's keys and values, each ``[layers, kv_heads, positions, head_dim]``."""

    keys: torch.Tensor
    values: torch.Tensor


class Llama:
    """A checkpoint's decoder, ready for positions 0 … ``max_seq_len`` - 1."""

    def __init__(self, checkpoint: Checkpoint, max_seq_len: int) -> None:
        self.config = checkpoint.config
        self.weights = checkpoint.weights
        self.dtype = self.weights.dtype
        self.device = self.weights.device
        self._rope = RopeTable.build(self.config, max_seq_len, dtype=self.dtype, device=self.device)
        self._group = self.config.heads // self.config.kv_heads
        if self.device.type == "cuda":
            # cuDNN plans attention anew for every length of the cache: in bfloat16 each token at a
            # new length took 50 to 60 ms on an H200, the other kernels take 8. For the process.
            torch.backends.cuda.enable_cudnn_sdp(enabled=False)

    def buffer(self, *leading: int, positions: int) -> KVBuffer:
        """Room for ``positions`` tokens; ``leading`` dimensions (slots) come first."""
        config = self.config
        shape = (*leading, config.layers, config.kv_heads, positions, config.head_dim)
        return KVBuffer(
            torch.empty(shape, dtype=self.dtype, device=self.device),
            torch.empty(shape, dtype=self.dtype, device=self.device),
        )

    def hidden(self, ids: torch.Tensor, at: int | Places, buffer: KVBuffer) -> torch.Tensor:
        """Run ``ids`` ``[tokens]`` at positions ``at`` …, or at these places; ``[tokens, hidden]``.

        Positions before them must be in ``buffer``; those of ``ids`` are written to it.
        """
        places = span(at, ids.shape[0], self.device) if isinstance(at, int) else at
        unseen = places.unseen
        mask = None if unseen is None else (~unseen).repeat(self._group, 1)
        x = nn.embedding(ids, self.weights.embedding)
        for index, layer in enumerate(self.weights.layers):
            x = x + self._attend(layer, x, places, mask, buffer.keys[index], buffer.values[index])
            x = x + self._mlp(layer, x)
        return x

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """The scores, float32 ``[vocab]``, of what follows the last token of ``hidden``."""
        return self.all_logits(hidden[-1:])[0]

    def all_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """The scores, float32 ``[tokens, vocab]``, of what follows each token of ``hidden``."""
        return linear(self._norm(hidden, self.weights.norm), self.weights.head).float()

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return nn.rms_norm(x, weight.shape, weight, self.config.rms_norm_eps)

    def _attend(
        self,
        layer: LayerWeights,
        x: torch.Tensor,
        places: Places,
        mask: torch.Tensor | None,
        keys: torch.Tensor,
        values: torch.Tensor,
    ) -> torch.Tensor:
        config = self.config
        tokens, stop = x.shape[0], places.stop
        qkv = linear(self._norm(x, layer.attention_norm), layer.qkv, layer.qkv_bias)
        heads = qkv.view(tokens, -1, config.head_dim)
        rotated = self._rope.rotate(heads[:, : config.heads + config.kv_heads], places)
        places.put(keys.transpose(0, 1), rotated[:, config.heads :])
        places.put(values.transpose(0, 1), heads[:, config.heads + config.kv_heads :])
        # The query heads that share a key/value head become more queries of that one head:
        # grouped-query attention without repeating K and V.
        queries = rotated[:, : config.heads].transpose(0, 1)
        queries = queries.reshape(1, config.kv_heads, self._group * tokens, config.head_dim)
        mixed = nn.scaled_dot_product_attention(
            queries, keys[None, :, :stop], values[None, :, :stop], attn_mask=mask
        )
        # reshape: on CUDA the memory of attention's result is not in the order of its dimensions.
        mixed = mixed.reshape(config.heads, tokens, config.head_dim).transpose(0, 1)
        return linear(mixed.reshape(tokens, config.q_size), layer.output)

    def _mlp(self, layer: LayerWeights, x: torch.Tensor) -> torch.Tensor:
        both = linear(self._norm(x, layer.mlp_norm), layer.gate_up)
        gate, up = both.chunk(2, -1)
        return linear(nn.silu(gate) * up, layer.down)
