"""A GLM-5-shaped model as files: a directory in, tokenizer, templates and weights out."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from tokenizers import Tokenizer

from tilert_engine.layouts.mla_nsa_model import MlaNsaModel
from tilert_stream.errors import ConfigError
from tilert_stream.events import Sampling

from .config import GLMConfig
from .weights import GLMWeights

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

__all__ = ("TINY_GLM5", "GLMCheckpoint")

TINY_GLM5: Final = Path(__file__).parent / "tiny_glm5"
"""The small model that is shipped with this package."""


@dataclass(frozen=True, kw_only=True)
class GLMCheckpoint:
    """A model in memory. Immutable; prefill and decode share it."""

    name: str
    config: GLMConfig
    tokenizer: Tokenizer
    eos_ids: frozenset[int]
    """Every id that ends the model's answer."""
    chat_template: str
    special_tokens: Mapping[str, str] = field(default_factory=dict[str, str])
    default_sampling: Sampling = field(default_factory=Sampling)
    weights: GLMWeights

    @property
    def max_position_embeddings(self) -> int:
        """Positions that the model was trained for."""
        return self.config.max_position_embeddings

    @property
    def cached(self) -> MlaNsaModel:
        """What a KV layout is made of."""
        config = self.config
        return MlaNsaModel(self.name, config.num_hidden_layers, config.num_nextn_predict_layers)

    @classmethod
    def load(
        cls, path: Path, *, dtype: torch.dtype, device: torch.device, name: str | None = None
    ) -> GLMCheckpoint:
        """Read a directory as Hugging Face lays it out, its weights in one safetensors file.

        :param name: what to call it; None: the directory's name.
        :raises ~tilert_stream.errors.ConfigError: a file is missing, or of another model.
        """
        for file in (
            "config.json",
            "tokenizer.json",
            "tokenizer_config.json",
            "model.safetensors",
        ):
            if not (path / file).is_file():
                raise ConfigError(f"the model {str(path)!r} has no {file}; copy it there")
        config = GLMConfig.read(path / "config.json")
        texts = cast("dict[str, str]", json.loads((path / "tokenizer_config.json").read_text()))
        ends = cast("dict[str, list[int]]", json.loads((path / "config.json").read_text()))
        return cls(
            name=name or path.name,
            config=config,
            tokenizer=Tokenizer.from_file(str(path / "tokenizer.json")),
            eos_ids=frozenset(ends["eos_token_id"]),
            chat_template=texts["chat_template"],
            special_tokens={"eos_token": texts["eos_token"]},
            weights=GLMWeights.load(path / "model.safetensors", config, dtype=dtype, device=device),
        )
