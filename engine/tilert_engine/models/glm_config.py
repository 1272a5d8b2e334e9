"""Dimensions of a GLM-5-shaped model: a ``config.json`` in, ``GLMConfig`` out, checked once."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, cast

from tilert_engine.layouts.mla_nsa_model import INDEXER, LATENT, ROPE
from tilert_stream.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ("GLMConfig",)


@dataclass(frozen=True, slots=True, kw_only=True)
class GLMConfig:
    """Multi-head latent attention, a lightning indexer, dense MLPs, one draft layer.

    Names are those of the checkpoint's ``config.json``.

    :raises ~tilert_stream.errors.ConfigError: a size that is no positive number, or one that the
        KV cache's formats do not have.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    """Main layers."""
    num_nextn_predict_layers: int
    """Draft layers."""
    num_attention_heads: int
    q_lora_rank: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    index_n_heads: int
    index_head_dim: int
    index_topk: int
    """Tokens that attention sees: the indexer's best."""
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int

    def __post_init__(self) -> None:
        for field in fields(self):
            value = cast("float", getattr(self, field.name))
            if not 0 < value < math.inf:
                raise ConfigError(f"the model's {field.name} is {value}; it must be above 0")
        for name, value, needed in (
            ("kv_lora_rank", self.kv_lora_rank, LATENT),
            ("qk_rope_head_dim", self.qk_rope_head_dim, ROPE),
            ("index_head_dim", self.index_head_dim, INDEXER),
            ("num_nextn_predict_layers", self.num_nextn_predict_layers, 1),
        ):
            if value != needed:
                raise ConfigError(f"the model's {name} is {value}; this engine takes {needed}")

    @property
    def cache_layers(self) -> int:
        """Layers that keep a KV cache: the main ones, then the draft layer."""
        return self.num_hidden_layers + self.num_nextn_predict_layers

    @classmethod
    def of(cls, found: Mapping[str, object]) -> GLMConfig:
        """Of what is in a checkpoint's ``config.json``.

        :raises ~tilert_stream.errors.ConfigError: a field is missing, or no number.
        """
        values: dict[str, float] = {}
        for field in fields(cls):
            value = found.get(field.name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ConfigError(f"config.json: {field.name} is {value!r}; it must be a number")
            values[field.name] = value
        return cls(**values)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] -- checked above
