"""A GLM-5-shaped model in memory: a directory in, description and weights out."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

from tilert_engine.models.glm_description import GLMDescription, describe_glm
from tilert_stream.errors import ConfigError

from .weights import GLMWeights

if TYPE_CHECKING:
    from pathlib import Path

    import torch

__all__ = ("GLMCheckpoint",)


@dataclass(frozen=True, kw_only=True)
class GLMCheckpoint(GLMDescription):
    """A model in memory. Immutable; prefill and decode share it."""

    weights: GLMWeights = field(repr=False)

    @classmethod
    def load(
        cls, path: Path, *, dtype: torch.dtype, device: torch.device, name: str | None = None
    ) -> GLMCheckpoint:
        """Read a directory as Hugging Face lays it out, its weights in one safetensors file.

        :param name: what to call the model; None: the directory's name.
        :raises ~tilert_stream.errors.ConfigError: a file is missing, or of another model.
        """
        described = describe_glm(path, name)
        file = path / "model.safetensors"
        if not file.is_file():
            raise ConfigError(f"the model {str(path)!r} has no {file.name}; copy it there")
        weights = GLMWeights.load(file, described.config, dtype=dtype, device=device)
        known = {item.name: getattr(described, item.name) for item in fields(described)}
        return cls(**known, weights=weights)
