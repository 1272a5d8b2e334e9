"""A model's weights: tensors by name in, fused and placed tensors out.

Names are those of Hugging Face's Llama; other sources translate. Query, key and value projections
are fused into one matrix, gate and up into another: a decode step is bound by the number of calls
and the bytes read, and half the calls read the same bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

from tilert_stream.errors import ConfigError

if TYPE_CHECKING:
    from tilert_engine.models.config import ModelConfig

__all__ = ("LayerWeights", "TensorSource", "Weights", "assemble")


class TensorSource(Protocol):
    """Where tensors come from."""

    @property
    def name(self) -> str:
        """What errors call it."""
        ...

    def tensor(self, name: str, /) -> torch.Tensor:
        """A tensor by its Hugging Face name, of any float type, on the CPU.

        :raises ~tilert_stream.errors.ConfigError: it is missing.
        """
        ...


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer. Matrices are ``[out, in]``."""

    attention_norm: torch.Tensor
    qkv: torch.Tensor
    """``[q_size + 2 * kv_size, hidden]``"""
    qkv_bias: torch.Tensor | None
    output: torch.Tensor
    """``[hidden, q_size]``"""
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor
    """``[2 * intermediate, hidden]``"""
    down: torch.Tensor
    """``[hidden, intermediate]``"""


@dataclass(frozen=True, slots=True)
class Weights:
    """All of a model's tensors, of one dtype on one device. Read-only: engines share them."""

    embedding: torch.Tensor
    """``[vocab, hidden]``"""
    layers: tuple[LayerWeights, ...]
    norm: torch.Tensor
    head: torch.Tensor
    """``[vocab, hidden]``; the embedding itself where the model ties them."""

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of every tensor."""
        return self.embedding.dtype

    @property
    def device(self) -> torch.device:
        """The device of every tensor."""
        return self.embedding.device


class _Assembler:
    def __init__(self, source: TensorSource, dtype: torch.dtype, device: torch.device) -> None:
        self._source = source
        self._dtype = dtype
        self._device = device

    def fused(self, names: tuple[str, ...], shapes: tuple[tuple[int, ...], ...]) -> torch.Tensor:
        """Tensors stacked along their first dimension, each copied once."""
        # Shapes are checked first: a wrong configuration must not be given terabytes to fill.
        parts = [self._part(name, shape) for name, shape in zip(names, shapes, strict=True)]
        rows = sum(shape[0] for shape in shapes)
        out = torch.empty(rows, *shapes[0][1:], dtype=self._dtype, device=self._device)
        start = 0
        for part in parts:
            out[start : start + part.shape[0]].copy_(part)
            start += part.shape[0]
        return out

    def one(self, name: str, *shape: int) -> torch.Tensor:
        return self.fused((name,), (shape,))

    def _part(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        part = self._source.tensor(name)
        if tuple(part.shape) != shape:
            raise ConfigError(
                f"{self._source.name}: tensor {name!r} has shape {tuple(part.shape)}, the "
                f"model's configuration needs {shape}; they are of different models"
            )
        return part


def assemble(
    source: TensorSource, config: ModelConfig, *, dtype: torch.dtype, device: torch.device
) -> Weights:
    """Bring every tensor that ``config`` needs to ``device``.

    :raises ~tilert_stream.errors.ConfigError: a tensor is missing or has another shape.
    """
    take = _Assembler(source, dtype, device)
    hidden, inner, kv = config.hidden_size, config.intermediate_size, config.kv_size

    def layer(index: int) -> LayerWeights:
        prefix = f"model.layers.{index}"
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        projections = ("q_proj", "k_proj", "v_proj")
        rows = (config.q_size, kv, kv)
        return LayerWeights(
            attention_norm=take.one(f"{prefix}.input_layernorm.weight", hidden),
            qkv=take.fused(
                tuple(f"{attention}.{name}.weight" for name in projections),
                tuple((size, hidden) for size in rows),
            ),
            qkv_bias=take.fused(
                tuple(f"{attention}.{name}.bias" for name in projections),
                tuple((size,) for size in rows),
            )
            if config.qkv_bias
            else None,
            output=take.one(f"{attention}.o_proj.weight", hidden, config.q_size),
            mlp_norm=take.one(f"{prefix}.post_attention_layernorm.weight", hidden),
            gate_up=take.fused(
                (f"{mlp}.gate_proj.weight", f"{mlp}.up_proj.weight"),
                ((inner, hidden), (inner, hidden)),
            ),
            down=take.one(f"{mlp}.down_proj.weight", hidden, inner),
        )

    embedding = take.one("model.embed_tokens.weight", config.vocab_size, hidden)
    return Weights(
        embedding=embedding,
        layers=tuple(layer(index) for index in range(config.layers)),
        norm=take.one("model.norm.weight", hidden),
        head=embedding
        if config.tied_head
        else take.one("lm_head.weight", config.vocab_size, hidden),
    )
