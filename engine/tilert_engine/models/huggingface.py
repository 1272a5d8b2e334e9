"""A Hugging Face directory without its weights: the path in, ``ModelDescription`` out.

Reads ``config.json``, ``tokenizer.json``, and where they exist ``generation_config.json``,
``tokenizer_config.json`` and ``chat_template.jinja``.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Final

from tokenizers import Tokenizer

from tilert_stream.errors import ConfigError
from tilert_stream.events import Sampling

from .config import LinearScaling, Llama3Scaling, ModelConfig
from .description import ModelDescription
from .metadata import Metadata

if TYPE_CHECKING:
    from pathlib import Path

    from .config import RopeScaling

__all__ = ("describe_huggingface", "read_json")

ARCHITECTURES: Final = ("llama", "mistral", "qwen2")


def describe_huggingface(path: Path) -> ModelDescription:
    """Read a directory's metadata.

    :raises ~tilert_stream.errors.ConfigError: another architecture, or something is missing or
        wrong.
    """
    metadata = read_json(path / "config.json")
    config = _config(metadata)
    generation = _read_optional(path / "generation_config.json")
    tokenizer_config = _read_optional(path / "tokenizer_config.json")
    tokenizer = _tokenizer(path / "tokenizer.json")
    special = _special_tokens(tokenizer_config)
    bos_id = next(iter(metadata.integers("bos_token_id")), None)
    if "bos_token" in special:
        bos_id = tokenizer.token_to_id(special["bos_token"])
    chat_template = _chat_template(path, tokenizer_config)
    default_sampling = _default_sampling(generation)
    eos_ids = set(metadata.integers("eos_token_id") + generation.integers("eos_token_id"))
    if "eos_token" in special:
        eos_id = tokenizer.token_to_id(special["eos_token"])
        eos_ids |= set() if eos_id is None else {eos_id}
    return ModelDescription(
        name=path.resolve().name,
        config=config,
        tokenizer=tokenizer,
        eos_ids=frozenset(eos_ids),
        bos_id=bos_id,
        chat_template=chat_template,
        special_tokens=special,
        default_sampling=default_sampling,
    )


def read_json(path: Path) -> Metadata:
    """A JSON file's object.

    :raises ~tilert_stream.errors.ConfigError: it is missing, or no object.
    """
    if not path.exists():
        raise ConfigError(
            f"{path.parent.name}: {path.name} is missing; a Hugging Face directory needs "
            "config.json, tokenizer.json and safetensors files"
        )
    try:
        values: object = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path.parent.name}: {path.name} is no JSON: {error}") from error
    whole = Metadata(path.parent.name, {path.name: values}).mapping(path.name)
    if whole is None:
        raise ConfigError(f"{path.parent.name}: {path.name} is null; it must be an object")
    return whole


def _read_optional(path: Path) -> Metadata:
    return read_json(path) if path.exists() else Metadata(path.name, {})


def _config(metadata: Metadata) -> ModelConfig:
    architecture = metadata.text("model_type")
    if architecture not in ARCHITECTURES:
        raise ConfigError(
            f"{metadata.source}: model_type is {architecture!r}, supported are "
            f"{', '.join(ARCHITECTURES)}"
        )
    positions = metadata.integer("max_position_embeddings")
    _refuse_variants(metadata, architecture, positions)
    hidden = metadata.integer("hidden_size")
    heads = metadata.integer("num_attention_heads")
    if heads < 1:
        raise ConfigError(f"{metadata.source}: num_attention_heads is {heads}, not >= 1")
    # Transformers 5 moved theta and the scaling into one object.
    rope = metadata.mapping("rope_parameters") or metadata.mapping("rope_scaling")
    theta = metadata.number("rope_theta", 10000.0)
    return ModelConfig(
        vocab_size=metadata.integer("vocab_size"),
        hidden_size=hidden,
        intermediate_size=metadata.integer("intermediate_size"),
        layers=metadata.integer("num_hidden_layers"),
        heads=heads,
        kv_heads=metadata.integer("num_key_value_heads", heads),
        head_dim=metadata.integer("head_dim", hidden // heads),
        rms_norm_eps=metadata.number("rms_norm_eps"),
        rope_theta=theta if rope is None else rope.number("rope_theta", theta),
        rope_scaling=None if rope is None else _rope_scaling(rope),
        max_position_embeddings=positions,
        tied_head=metadata.flag("tie_word_embeddings", default=False),
        qkv_bias=architecture == "qwen2",
    )


def _refuse_variants(metadata: Metadata, architecture: str, positions: int) -> None:
    activation = metadata.text("hidden_act", "silu")
    if activation != "silu":
        raise ConfigError(f"{metadata.source}: hidden_act is {activation!r}, supported is 'silu'")
    for bias in ("attention_bias", "mlp_bias"):
        if metadata.flag(bias, default=False):
            raise ConfigError(f"{metadata.source}: {bias} is true, supported is false")
    windowed = metadata.flag("use_sliding_window", default=architecture == "mistral")
    window = metadata.integer("sliding_window", positions)
    if windowed and window < positions:
        raise ConfigError(
            f"{metadata.source}: sliding_window is {window}, below max_position_embeddings "
            f"{positions}; sliding attention is not supported"
        )


def _rope_scaling(rope: Metadata) -> RopeScaling | None:
    kind = rope.text("rope_type", rope.text("type", "default"))
    if kind == "default":
        return None
    if kind == "linear":
        return LinearScaling(rope.number("factor"))
    if kind == "llama3":
        return Llama3Scaling(
            factor=rope.number("factor"),
            low_freq_factor=rope.number("low_freq_factor"),
            high_freq_factor=rope.number("high_freq_factor"),
            original_max_position=rope.integer("original_max_position_embeddings"),
        )
    raise ConfigError(
        f"{rope.source}: rope_type is {kind!r}, supported are default, linear, llama3"
    )


def _tokenizer(path: Path) -> Tokenizer:
    if not path.exists():
        raise ConfigError(
            f"{path.parent.name}: tokenizer.json is missing; save the model's fast tokenizer there"
        )
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise ConfigError(f"{path.parent.name}: tokenizer.json: {error}") from error


def _special_tokens(tokenizer_config: Metadata) -> dict[str, str]:
    special: dict[str, str] = {}
    for key in ("bos_token", "eos_token", "unk_token", "pad_token"):
        value = tokenizer_config.get(key)
        if isinstance(value, dict):
            inner = tokenizer_config.mapping(key)
            value = None if inner is None else inner.text("content")
        if isinstance(value, str):
            special[key] = value
    return special


def _chat_template(path: Path, tokenizer_config: Metadata) -> str | None:
    file = path / "chat_template.jinja"
    if file.exists():
        try:
            return file.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ConfigError(f"{path.name}: {file.name} is not UTF-8: {error}") from error
    value = tokenizer_config.get("chat_template")
    if not isinstance(value, list):
        return tokenizer_config.text("chat_template", "") or None
    # Several templates: [{"name": "default", "template": …}, {"name": "tool_use", …}]
    for position, item in enumerate(tokenizer_config.items("chat_template")):
        entry = Metadata(tokenizer_config.source, {f"chat_template {position}": item}).mapping(
            f"chat_template {position}"
        )
        if entry is not None and entry.text("name") == "default":
            return entry.text("template")
    return None


def _default_sampling(generation: Metadata) -> Sampling:
    default = Sampling()
    sampling = Sampling(
        temperature=generation.number("temperature", default.temperature),
        top_p=generation.number("top_p", default.top_p),
        top_k=generation.integer("top_k", default.top_k),
        min_p=generation.number("min_p", default.min_p),
    )
    for name, value, fits, needed in (
        ("temperature", sampling.temperature, 0 <= sampling.temperature < math.inf, "at least 0"),
        ("top_p", sampling.top_p, 0 < sampling.top_p <= 1, "above 0, at most 1"),
        ("top_k", sampling.top_k, sampling.top_k >= -1, "at least 0, or -1 for all tokens"),
        ("min_p", sampling.min_p, 0 <= sampling.min_p <= 1, "between 0 and 1"),
    ):
        if not fits:
            raise ConfigError(f"{generation.source}: {name!r} is {value}; it must be {needed}")
    return sampling
