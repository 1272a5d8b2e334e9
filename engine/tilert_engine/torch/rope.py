"""Rotary position embedding: a configuration in, cosine and sine tables out.

A head's vector x is rotated as ``x * cos + roll(x, head_dim / 2) * sin``: the tables hold every
angle twice, and the sign of "rotate half" is folded into the sine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from tilert_engine.models.config import FactorScaling, LinearScaling, Llama3Scaling
from tilert_stream.errors import ConfigError

if TYPE_CHECKING:
    from tilert_engine.models.config import ModelConfig

    from .places import Places

__all__ = ("RopeTable",)


@dataclass(frozen=True, slots=True)
class RopeTable:
    """Cosines and signed sines, each ``[positions, 1, head_dim]`` (1: broadcast over heads)."""

    cos: torch.Tensor
    sin: torch.Tensor

    @classmethod
    def build(
        cls, config: ModelConfig, positions: int, *, dtype: torch.dtype, device: torch.device
    ) -> RopeTable:
        """Tables for ``positions`` positions from 0.

        Angles are computed in float64: in float32 those of late positions lose their last digits.
        """
        frequencies = _frequencies(config)
        angles = torch.outer(torch.arange(positions, dtype=torch.float64), frequencies)
        cos, sin = angles.cos(), angles.sin()
        return cls(
            torch.cat((cos, cos), -1).unsqueeze(1).to(device, dtype),
            torch.cat((-sin, sin), -1).unsqueeze(1).to(device, dtype),
        )

    def rotate(self, x: torch.Tensor, places: Places) -> torch.Tensor:
        """Rotate ``x``, ``[tokens, heads, head_dim]``, as if at ``places``."""
        half = x.roll(x.shape[-1] // 2, -1)
        return torch.addcmul(x * places.of(self.cos), half, places.of(self.sin))


def _frequencies(config: ModelConfig) -> torch.Tensor:
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
    frequencies = config.rope_theta**-exponents
    match config.rope_scaling:
        case None:
            return frequencies
        case LinearScaling(factor):
            return frequencies / factor
        case FactorScaling(factors):
            if len(factors) != len(frequencies):
                raise ConfigError(
                    f"the checkpoint has {len(factors)} rope factors, a head of "
                    f"{config.head_dim} dimensions needs {len(frequencies)}; convert it again"
                )
            return frequencies / torch.tensor(factors, dtype=torch.float64)
        case Llama3Scaling() as scaling:
            return _llama3(frequencies, scaling)


def _llama3(frequencies: torch.Tensor, scaling: Llama3Scaling) -> torch.Tensor:
    """Llama 3.1's ramp between scaled and unscaled frequencies, by wavelength.

    Source: ``apply_scaling`` in Meta's ``llama-models``.
    """
    turns = scaling.original_max_position * frequencies / (2 * math.pi)
    ramp = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    kept = ramp.clamp(0, 1)
    return frequencies * (kept + (1 - kept) / scaling.factor)
