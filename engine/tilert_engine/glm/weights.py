"""A GLM-5-shaped model's weights: a safetensors file in, fused and rearranged tensors out.

What reads the same input is one matrix, and the rows of the query projections are put in the order
in which a step uses them: a small model's step is bound by the number of calls.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from safetensors.torch import load_file

from tilert_stream.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from .config import GLMConfig

__all__ = ("DraftWeights", "GLMWeights", "LayerWeights")


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. Matrices are ``[out, in]``, those of heads ``[heads, in, out]``."""

    attention_norm: torch.Tensor
    inward: torch.Tensor
    """To the low-rank query, the latent, the shared key's rope, the indexer's key and its heads'
    weights, in this order."""
    query_norm: torch.Tensor
    queries: torch.Tensor
    """From the low-rank query to all heads' plain parts, all heads' rope parts (both times
    attention's scale), all the indexer heads' rope parts, and their plain parts."""
    latent_norm: torch.Tensor
    index_norm: torch.Tensor
    index_bias: torch.Tensor
    absorb_key: torch.Tensor
    """``[heads, nope, latent]``: brings a query to the latent's space."""
    absorb_value: torch.Tensor
    """``[heads, latent, value]``: brings a mixed latent to a head's value."""
    output: torch.Tensor
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


@dataclass(frozen=True, slots=True)
class DraftWeights:
    """What the draft layer has beside a layer."""

    embedding_norm: torch.Tensor
    hidden_norm: torch.Tensor
    project: torch.Tensor
    """``[hidden, 2 * hidden]``: from the next token's embedding and the hidden state."""
    norm: torch.Tensor


@dataclass(frozen=True, slots=True)
class GLMWeights:
    """All of a model's tensors, of one dtype on one device. Read-only: engines share them."""

    embedding: torch.Tensor
    """``[vocab, hidden]``; the output head as well."""
    layers: tuple[LayerWeights, ...]
    """The main layers, then the draft layer."""
    norm: torch.Tensor
    draft: DraftWeights

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of every tensor."""
        return self.embedding.dtype

    @property
    def device(self) -> torch.device:
        """The device of every tensor."""
        return self.embedding.device

    @classmethod
    def load(
        cls, path: Path, config: GLMConfig, *, dtype: torch.dtype, device: torch.device
    ) -> GLMWeights:
        """Read a checkpoint.

        :raises ~tilert_stream.errors.ConfigError: a tensor is missing or has another shape.
        """
        source = _Source(path, dtype, device)
        hidden = config.hidden_size
        draft = f"model.layers.{config.num_hidden_layers}"
        return cls(
            embedding=source.take("model.embed_tokens.weight", config.vocab_size, hidden),
            layers=tuple(_layer(source, config, index) for index in range(config.cache_layers)),
            norm=source.take("model.norm.weight", hidden),
            draft=DraftWeights(
                embedding_norm=source.take(f"{draft}.enorm.weight", hidden),
                hidden_norm=source.take(f"{draft}.hnorm.weight", hidden),
                project=source.take(f"{draft}.eh_proj.weight", hidden, 2 * hidden),
                norm=source.take(f"{draft}.shared_head.norm.weight", hidden),
            ),
        )


class _Source:
    def __init__(self, path: Path, dtype: torch.dtype, device: torch.device) -> None:
        self._name, self._dtype, self._device = path.name, dtype, device
        self._tensors = load_file(path)

    def take(self, name: str, *shape: int) -> torch.Tensor:
        tensor = self._tensors.get(name)
        if tensor is None:
            raise ConfigError(f"{self._name}: tensor {name!r} is missing; the file is incomplete")
        if tuple(tensor.shape) != shape:
            raise ConfigError(
                f"{self._name}: tensor {name!r} has shape {tuple(tensor.shape)}, the model's"
                f" configuration needs {shape}; they are of different models"
            )
        return tensor.to(self._device, self._dtype)


def _layer(source: _Source, config: GLMConfig, index: int) -> LayerWeights:
    prefix = f"model.layers.{index}"
    attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
    indexer = f"{attention}.indexer"
    hidden, low, latent = config.hidden_size, config.q_lora_rank, config.kv_lora_rank
    heads, nope, rope = (
        config.num_attention_heads,
        config.qk_nope_head_dim,
        config.qk_rope_head_dim,
    )
    inner, keys = config.intermediate_size, config.index_head_dim
    queries = source.take(f"{attention}.q_b_proj.weight", heads * (nope + rope), low)
    plain, turned = queries.view(heads, nope + rope, low).split((nope, rope), 1)
    scale = 1 / math.sqrt(nope + rope)
    ranking = source.take(f"{indexer}.wq_b.weight", config.index_n_heads * keys, low)
    index_turned, index_plain = ranking.view(-1, keys, low).split((rope, keys - rope), 1)
    expand = source.take(
        f"{attention}.kv_b_proj.weight", heads * (nope + config.v_head_dim), latent
    )
    key, value = expand.view(heads, -1, latent).split((nope, config.v_head_dim), 1)
    return LayerWeights(
        attention_norm=source.take(f"{prefix}.input_layernorm.weight", hidden),
        inward=torch.cat(
            (
                source.take(f"{attention}.q_a_proj.weight", low, hidden),
                source.take(f"{attention}.kv_a_proj_with_mqa.weight", latent + rope, hidden),
                source.take(f"{indexer}.wk.weight", keys, hidden),
                source.take(f"{indexer}.weights_proj.weight", config.index_n_heads, hidden),
            )
        ),
        query_norm=source.take(f"{attention}.q_a_layernorm.weight", low),
        queries=torch.cat(
            [
                part.reshape(-1, low)
                for part in (plain * scale, turned * scale, index_turned, index_plain)
            ]
        ),
        latent_norm=source.take(f"{attention}.kv_a_layernorm.weight", latent),
        index_norm=source.take(f"{indexer}.k_norm.weight", keys),
        index_bias=source.take(f"{indexer}.k_norm.bias", keys),
        absorb_key=key.contiguous(),
        absorb_value=value.transpose(1, 2).contiguous(),
        output=source.take(f"{attention}.o_proj.weight", hidden, heads * config.v_head_dim),
        mlp_norm=source.take(f"{prefix}.post_attention_layernorm.weight", hidden),
        gate_up=torch.cat(
            [source.take(f"{mlp}.{name}_proj.weight", inner, hidden) for name in ("gate", "up")]
        ),
        down=source.take(f"{mlp}.down_proj.weight", hidden, inner),
    )
