"""A GLM-5-shaped model without its weights: a directory in, ``GLMDescription`` out."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from tokenizers import Tokenizer

from tilert_engine.layouts.mla_nsa_model import MlaNsaModel
from tilert_stream.errors import ConfigError
from tilert_stream.events import Sampling

from .glm_config import GLMConfig

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ("GLMDescription", "describe_glm")


@dataclass(frozen=True, kw_only=True)
class GLMDescription:
    """A model's shape, tokenizer and chat template. Immutable."""

    name: str
    config: GLMConfig
    tokenizer: Tokenizer
    eos_ids: frozenset[int]
    """Every id that ends the model's answer."""
    chat_template: str
    special_tokens: Mapping[str, str] = field(default_factory=dict[str, str])
    """What the chat template may name."""
    default_sampling: Sampling = field(default_factory=Sampling)
    """What ``generation_config.json`` recommends."""

    @property
    def max_position_embeddings(self) -> int:
        """Positions that the model was trained for."""
        return self.config.max_position_embeddings

    @property
    def default_max_seq_len(self) -> int:
        """Tokens of a slot where nothing else is asked for.

        A router and its nodes must come to the same number, each by itself.
        """
        return self.max_position_embeddings

    @property
    def cached(self) -> MlaNsaModel:
        """What a KV layout is made of."""
        config = self.config
        return MlaNsaModel(self.name, config.num_hidden_layers, config.num_nextn_predict_layers)


def describe_glm(path: Path, name: str | None = None) -> GLMDescription:
    """Read a directory as Hugging Face lays it out.

    :param name: what to call the model; None: the directory's name.
    :raises ~tilert_stream.errors.ConfigError: a file is missing, or a field of it is.
    """
    config, texts, drawn = (
        _read(path, f"{kind}.json") for kind in ("config", "tokenizer_config", "generation_config")
    )
    _present(path, "tokenizer.json")
    try:
        return GLMDescription(
            name=name or path.name,
            config=GLMConfig.of(config),
            tokenizer=Tokenizer.from_file(str(path / "tokenizer.json")),
            eos_ids=frozenset(cast("list[int]", config["eos_token_id"])),
            chat_template=cast("str", texts["chat_template"]),
            special_tokens={"eos_token": cast("str", texts["eos_token"])},
            default_sampling=Sampling(
                temperature=cast("float", drawn["temperature"]), top_p=cast("float", drawn["top_p"])
            ),
        )
    except KeyError as error:
        raise ConfigError(f"the model {str(path)!r} does not say its {error}; add it") from error


def _read(path: Path, file: str) -> dict[str, object]:
    _present(path, file)
    return cast("dict[str, object]", json.loads((path / file).read_text("utf-8")))


def _present(path: Path, file: str) -> None:
    if not (path / file).is_file():
        raise ConfigError(f"the model {str(path)!r} has no {file}; copy it there")
