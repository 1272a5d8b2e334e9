"""The models that TileRT decodes: one of their many names in, what is known of it out. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tilert_stream.errors import ConfigError

__all__ = ("MODELS", "TileRTModel", "find_model")


@dataclass(frozen=True, slots=True, kw_only=True)
class TileRTModel:
    """One model, and where ``tilert`` has it."""

    name: str
    """TileRT's own name."""
    aliases: tuple[str, ...]
    """Other names that TileRT takes."""
    backend: str
    """What ``tilert.load_backend`` calls it."""
    package: str
    """Package of its generator and arguments."""
    generator: str
    arguments: str
    """Class of its arguments, in ``model_args``."""
    indices: str | None
    """Module that says where single steps leave their tokens; None where steps are chained."""
    layers: int
    """Cache layers, without the draft layer."""

    def cache_layers(self, *, with_mtp: bool) -> int:
        """Cache layers, the draft layer among them with MTP."""
        return self.layers + with_mtp


MODELS: Final = (
    TileRTModel(
        name="glm5",
        aliases=("glm_5", "glm-5"),
        backend="glm5",
        package="tilert.models.glm_5",
        generator="GLM5Generator",
        arguments="ModelArgsGLM5",
        indices=None,
        layers=78,
    ),
    TileRTModel(
        name="dsv32",
        aliases=("deepseek_v3_2", "deepseek-v3.2", "dsv3.2", "v32"),
        backend="deepseek_v3_2",
        package="tilert.models.deepseek_v3_2",
        generator="DSAv32Generator",
        arguments="ModelArgs",
        indices="tilert.models.deepseek_v3_2.temp_var_indices",
        layers=61,
    ),
)


def find_model(name: str) -> TileRTModel:
    """The model of that name, in any case.

    :raises ~tilert_stream.errors.ConfigError: there is none; the known names are listed.
    """
    wanted = name.lower()
    for model in MODELS:
        if wanted == model.name or wanted in model.aliases:
            return model
    known = ", ".join(each for model in MODELS for each in (model.name, *model.aliases))
    raise ConfigError(f"model is {name!r}; TileRT decodes {known}", param="model")
