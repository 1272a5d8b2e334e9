"""A GGUF file as a checkpoint: the path in, ``Checkpoint`` out.

Metadata keys and tensor names are those that llama.cpp's ``convert_hf_to_gguf.py`` writes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tilert_stream.errors import ConfigError

from .checkpoint import Checkpoint
from .config import FactorScaling, LinearScaling, ModelConfig
from .gguf_file import GGUFFile
from .gguf_tokenizer import gguf_eos_ids, gguf_tokenizer
from .weights import assemble

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from .config import RopeScaling

__all__ = ("load_gguf",)

ARCHITECTURES: Final = ("llama", "qwen2")

_GLOBAL_NAMES: Final = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_LAYER_NAMES: Final = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_ROPE_FACTORS: Final = "rope_freqs.weight"


class _Tensors:
    """The file's tensors by their Hugging Face names."""

    def __init__(self, file: GGUFFile, config: ModelConfig, *, interleaved: bool) -> None:
        self.name = file.path.name
        self._file = file
        self._heads = {"attn_q": config.heads, "attn_k": config.kv_heads} if interleaved else {}

    def tensor(self, name: str) -> torch.Tensor:
        if name in _GLOBAL_NAMES:
            return self._file.tensor(_GLOBAL_NAMES[name])
        index, module = name.removeprefix("model.layers.").split(".", 1)
        module, kind = module.rsplit(".", 1)
        gguf_module = _LAYER_NAMES[module]
        tensor = self._file.tensor(f"blk.{index}.{gguf_module}.{kind}")
        heads = self._heads.get(gguf_module)
        return tensor if heads is None else _split_halves(tensor, heads)


def _split_halves(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """Undo llama.cpp's row order for the ``llama`` architecture.

    It rotates neighbouring rows of a head (2i, 2i + 1), and permutes them so on conversion; we
    rotate row i with row i + head_dim / 2, as Hugging Face does.
    """
    rows = tensor.shape[0]
    if rows % (2 * heads):
        return tensor  # a wrong shape is reported, with both values, where it is checked
    pairs = tensor.reshape(heads, rows // heads // 2, 2, *tensor.shape[1:])
    return pairs.transpose(1, 2).reshape(tensor.shape)


def load_gguf(path: Path, *, dtype: torch.dtype, device: torch.device) -> Checkpoint:
    """Load a GGUF file.

    :raises ~tilert_stream.errors.ConfigError: another architecture, something missing, truncated
        or of the wrong shape.
    """
    file = GGUFFile(path)
    metadata = file.metadata
    architecture = metadata.text("general.architecture")
    if architecture not in ARCHITECTURES:
        raise ConfigError(
            f"{path.name}: general.architecture is {architecture!r}, supported are "
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
    tensors = _Tensors(file, config, interleaved=architecture == "llama")
    return Checkpoint(
        name=path.stem,
        config=config,
        weights=assemble(tensors, config, dtype=dtype, device=device),
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
        return FactorScaling(tuple(float(x) for x in file.tensor(_ROPE_FACTORS).flatten()))
    return None
