"""The models that TileRT decodes: one of their names in, where ``tilert`` has it out. No torch.

Names are those of the KV layout: what prefill hands over is what is decoded.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from tilert_engine.layouts.mla_nsa_model import MlaNsaModel

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ("TileRTModel", "find_model")


@dataclass(frozen=True, slots=True, kw_only=True)
class TileRTModel:
    """One model, as the package ``tilert`` has it."""

    name: str
    backend: str
    """What ``tilert.load_backend`` calls it."""
    package: str
    """Package of its generator and arguments."""
    generator: str
    arguments: str
    """Class of its arguments, in ``model_args``."""
    indices: str | None
    """Module that says where single steps leave their tokens; None where steps are chained."""


_MODELS: Final[Mapping[str, TileRTModel]] = MappingProxyType(
    {
        model.name: model
        for model in (
            TileRTModel(
                name="glm5",
                backend="glm5",
                package="tilert.models.glm_5",
                generator="GLM5Generator",
                arguments="ModelArgsGLM5",
                indices=None,
            ),
            TileRTModel(
                name="dsv32",
                backend="deepseek_v3_2",
                package="tilert.models.deepseek_v3_2",
                generator="DSAv32Generator",
                arguments="ModelArgs",
                indices="tilert.models.deepseek_v3_2.temp_var_indices",
            ),
        )
    }
)


def find_model(name: str) -> TileRTModel:
    """The model of that name, or of one of TileRT's aliases for it.

    :raises ~tilert_stream.errors.ConfigError: there is none; the known names are listed.
    """
    return _MODELS[MlaNsaModel.of(name).name]
