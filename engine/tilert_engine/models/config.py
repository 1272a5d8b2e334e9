"""A model's dimensions: read from a checkpoint's metadata, used by weights, rope and engines.

In: values of a ``config.json`` or of GGUF metadata. Out: ``ModelConfig``, checked once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

from tilert_stream.errors import ConfigError

__all__ = (
    "FactorScaling",
    "LinearScaling",
    "Llama3Scaling",
    "ModelConfig",
    "RopeScaling",
)


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Positions divided by ``factor``."""

    factor: float


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Long wavelengths divided by ``factor``, short ones kept, a ramp between (Llama 3.1)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position: int


@dataclass(frozen=True, slots=True)
class FactorScaling:
    """One divisor a frequency, ``[head_dim / 2]``: how GGUF ships a computed scaling."""

    factors: tuple[float, ...]


RopeScaling: TypeAlias = LinearScaling | Llama3Scaling | FactorScaling


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Dimensions of a Llama-family decoder.

    :raises ~tilert_stream.errors.ConfigError: dimensions that do not fit one another.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None = None
    max_position_embeddings: int
    """Positions that the model was trained for."""
    tied_head: bool
    """Whether the output head is the embedding."""
    qkv_bias: bool = False

    def __post_init__(self) -> None:
        sizes = {
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "layers": self.layers,
            "heads": self.heads,
            "kv_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "max_position_embeddings": self.max_position_embeddings,
        }
        for name, size in sizes.items():
            if size < 1:
                raise ConfigError(f"the model's {name} is {size}; it must be at least 1")
        for name, value in self._scales():
            if not 0 < value < math.inf:
                raise ConfigError(f"the model's {name} is {value}; it must be above 0 and finite")
        if self.heads % self.kv_heads:
            raise ConfigError(
                f"the model has {self.heads} attention heads and {self.kv_heads} key/value heads; "
                "the first must be a multiple of the second"
            )
        if self.head_dim % 2:
            raise ConfigError(
                f"the model's head_dim is {self.head_dim}; rotary embedding needs an even number"
            )

    def _scales(self) -> list[tuple[str, float]]:
        scales = [("rms_norm_eps", self.rms_norm_eps), ("rope_theta", self.rope_theta)]
        match self.rope_scaling:
            case None:
                pass
            case LinearScaling(factor):
                scales.append(("rope factor", factor))
            case FactorScaling(factors):
                scales.extend(("rope factor", factor) for factor in factors)
            case Llama3Scaling() as llama3:
                ramp = llama3.high_freq_factor - llama3.low_freq_factor
                scales.append(("rope factor", llama3.factor))
                scales.append(("rope high_freq_factor less its low_freq_factor", ramp))
                scales.append(("rope original_max_position", llama3.original_max_position))
        return scales

    @property
    def q_size(self) -> int:
        """Rows of the query projection."""
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Rows of the key projection, and of the value projection."""
        return self.kv_heads * self.head_dim
