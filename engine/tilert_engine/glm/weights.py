"""A GLM-5-shaped model's weights: a safetensors file in, fused and rearranged tensors out.

What reads the same input is one matrix, the rows of the query projections are put in the order in
which a step uses them, and a norm's weight is multiplied into the matrix behind it, together with
the square root of its size: a small model's step is bound by the number of calls.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from safetensors.torch import load_file  # pyright: ignore[reportUnknownVariableType] -- its paths are

from tilert_stream.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from tilert_engine.models.glm_config import GLMConfig

__all__ = ("DraftWeights", "GLMWeights", "LayerWeights")


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. Matrices are ``[out, in]``, those of heads ``[heads, in, out]``."""

    inward: torch.Tensor
    """From the input, at unit length, to the low-rank query, the latent, the shared key's rope, the
    indexer's key and its heads' weights, in this order."""
    queries: torch.Tensor
    """From the low-rank query, at unit length, to all heads' plain parts, all heads' rope parts
    (both times attention's scale), all the indexer heads' rope parts, and their plain parts."""
    latent_norm: torch.Tensor
    """What a latent of unit length is multiplied by."""
    index_norm: torch.Tensor
    index_bias: torch.Tensor
    absorb_key: torch.Tensor
    """``[heads, nope, latent]``: brings a query to the latent's space."""
    absorb_value: torch.Tensor
    """``[heads, latent, value]``: brings a mixed latent to a head's value."""
    output: torch.Tensor
    gate_up: torch.Tensor
    """From the input, at unit length."""
    down: torch.Tensor


@dataclass(frozen=True, slots=True)
class DraftWeights:
    """What the draft layer has beside a layer."""

    project: torch.Tensor
    """``[hidden, 2 * hidden]``: from the next token's embedding and the hidden state, each at unit
    length."""
    head: torch.Tensor
    """``[vocab, hidden]``"""


@dataclass(frozen=True, slots=True)
class GLMWeights:
    """All of a model's tensors, of one dtype on one device. Read-only: engines share them."""

    embedding: torch.Tensor
    """``[vocab, hidden]``; the heads are this matrix, each times its norm's weight."""
    layers: tuple[LayerWeights, ...]
    """The main layers, then the draft layer."""
    head: torch.Tensor
    """``[vocab, hidden]``, for a hidden state at unit length."""
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
        embedding = source.take("model.embed_tokens.weight", config.vocab_size, hidden)
        inputs = [source.norm(f"{draft}.{name}norm.weight", hidden) for name in ("e", "h")]
        project = source.take(f"{draft}.eh_proj.weight", hidden, 2 * hidden)
        return cls(
            embedding=embedding,
            layers=tuple(_layer(source, config, index) for index in range(config.cache_layers)),
            head=embedding * source.norm("model.norm.weight", hidden),
            draft=DraftWeights(
                project=project * torch.cat(inputs),
                head=embedding * source.norm(f"{draft}.shared_head.norm.weight", hidden),
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

    def norm(self, name: str, size: int) -> torch.Tensor:
        """What a vector of unit length is multiplied by to be normalised."""
        return self.take(name, size) * math.sqrt(size)


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
    queries = queries.view(heads, nope + rope, low)
    plain, turned = queries[:, :nope], queries[:, nope:]
    scale = 1 / math.sqrt(nope + rope)
    ranking = source.take(f"{indexer}.wq_b.weight", config.index_n_heads * keys, low)
    ranking = ranking.view(-1, keys, low)
    index_turned, index_plain = ranking[:, :rope], ranking[:, rope:]
    expand = source.take(
        f"{attention}.kv_b_proj.weight", heads * (nope + config.v_head_dim), latent
    ).view(heads, -1, latent)
    return LayerWeights(
        inward=torch.cat(
            (
                source.take(f"{attention}.q_a_proj.weight", low, hidden),
                source.take(f"{attention}.kv_a_proj_with_mqa.weight", latent + rope, hidden),
                source.take(f"{indexer}.wk.weight", keys, hidden),
                source.take(f"{indexer}.weights_proj.weight", config.index_n_heads, hidden),
            )
        )
        * source.norm(f"{prefix}.input_layernorm.weight", hidden),
        queries=torch.cat(
            [
                part.reshape(-1, low)
                for part in (plain * scale, turned * scale, index_turned, index_plain)
            ]
        )
        * source.norm(f"{attention}.q_a_layernorm.weight", low),
        latent_norm=source.norm(f"{attention}.kv_a_layernorm.weight", latent),
        index_norm=source.take(f"{indexer}.k_norm.weight", keys),
        index_bias=source.take(f"{indexer}.k_norm.bias", keys),
        absorb_key=expand[:, :nope].contiguous(),
        absorb_value=expand[:, nope:].transpose(1, 2).contiguous(),
        output=source.take(f"{attention}.o_proj.weight", hidden, heads * config.v_head_dim),
        gate_up=torch.cat(
            [source.take(f"{mlp}.{name}_proj.weight", inner, hidden) for name in ("gate", "up")]
        )
        * source.norm(f"{prefix}.post_attention_layernorm.weight", hidden),
        down=source.take(f"{mlp}.down_proj.weight", hidden, inner),
    )
