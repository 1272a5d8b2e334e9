"""A GGUF file without its weights: the opened file in, ``ModelDescription`` out.

Metadata keys are those that llama.cpp's ``convert_hf_to_gguf.py`` writes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tilert_stream.errors import ConfigError

from .config import FactorScaling, LinearScaling, ModelConfig
from .description import ModelDescription
from .gguf_tokenizer import gguf_eos_ids, gguf_tokenizer

if TYPE_CHECKING:
    from .config import RopeScaling
    from .gguf_file import GGUFFile

__all__ = ("describe_gguf",)

ARCHITECTURES: Final = ("llama", "qwen2")

_ROPE_FACTORS: Final = "rope_freqs.weight"


def describe_gguf(file: GGUFFile) -> ModelDescription:
    """Read a file's metadata.

    :raises ~tilert_stream.errors.ConfigError: another architecture, or something is missing or
        wrong.
    """
    metadata = file.metadata
    architecture = metadata.text("general.architecture")
    if architecture not in ARCHITECTURES:
        raise ConfigError(
            f"{file.path.name}: general.architecture is {architecture!r}, supported are "
            f"{', '.join(ARCHITECTURES)}"
        )
    config = _config(file, architecture)
    tokenizer = gguf_tokenizer(metadata)
    special = {
        f"{key}_token": token
        for key in ("bos", "eos")
        for index in metadata.integers(f"tokenizer.ggml.{key}_token_id")
        if index >= 0 and (token := tokenizer.id_to_token(index)) is not None
    }
    return ModelDescription(
        name=file.path.stem,
        config=config,
        tokenizer=tokenizer,
        eos_ids=gguf_eos_ids(metadata),
        bos_id=next(iter(metadata.integers("tokenizer.ggml.bos_token_id")), None),
        chat_template=metadata.text("tokenizer.chat_template", "") or None,
        special_tokens=special,
    )


def _config(file: GGUFFile, architecture: str) -> ModelConfig:
    metadata = file.metadata

    def key(name: str) -> str:
        return f"{architecture}.{name}"

    if metadata.integer(key("expert_count"), 0):
        raise ConfigError(
            f"{file.path.name}: {key('expert_count')} is {metadata.integer(key('expert_count'))}; "
            "mixtures of experts are not supported, take a dense model"
        )
    hidden = metadata.integer(key("embedding_length"))
    heads = metadata.integer(key("attention.head_count"))
    if heads < 1:
        raise ConfigError(f"{file.path.name}: {key('attention.head_count')} is {heads}, not >= 1")
    head_dim = metadata.integer(key("attention.key_length"), hidden // heads)
    rotated = metadata.integer(key("rope.dimension_count"), head_dim)
    if rotated != head_dim:
        raise ConfigError(
            f"{file.path.name}: {key('rope.dimension_count')} is {rotated}, the head has "
            f"{head_dim} dimensions; partial rotary embedding is not supported"
        )
    return ModelConfig(
        vocab_size=file.shape("token_embd.weight")[0],
        hidden_size=hidden,
        intermediate_size=metadata.integer(key("feed_forward_length")),
        layers=metadata.integer(key("block_count")),
        heads=heads,
        kv_heads=metadata.integer(key("attention.head_count_kv"), heads),
        head_dim=head_dim,
        rms_norm_eps=metadata.number(key("attention.layer_norm_rms_epsilon")),
        rope_theta=metadata.number(key("rope.freq_base"), 10000.0),
        rope_scaling=_rope_scaling(file, key("rope.scaling")),
        max_position_embeddings=metadata.integer(key("context_length")),
        tied_head="output.weight" not in file,
        qkv_bias=architecture == "qwen2",
    )


def _rope_scaling(file: GGUFFile, prefix: str) -> RopeScaling | None:
    kind = file.metadata.text(f"{prefix}.type", "none")
    if kind == "linear":
        return LinearScaling(file.metadata.number(f"{prefix}.factor"))
    if kind != "none":
        raise ConfigError(
            f"{file.path.name}: {prefix}.type is {kind!r}; supported are none, linear, and the "
            f"factors of a {_ROPE_FACTORS!r} tensor"
        )
    if _ROPE_FACTORS in file:
        return FactorScaling(
            tuple(float(factor) for factor in file.tensor(_ROPE_FACTORS).flatten())
        )
    return None
