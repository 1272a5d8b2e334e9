"""The tensors of a GGUF file, by their Hugging Face names: a file in, a ``TensorSource`` out.

Tensor names are those that llama.cpp's ``convert_hf_to_gguf.py`` writes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

if TYPE_CHECKING:
    from tilert_engine.models.config import ModelConfig
    from tilert_engine.models.gguf_file import GGUFFile

__all__ = ("GGUFTensors",)

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


class GGUFTensors:
    """The file's tensors by their Hugging Face names."""

    def __init__(self, file: GGUFFile, config: ModelConfig) -> None:
        # llama.cpp reorders rows for this architecture only.
        interleaved = file.metadata.text("general.architecture") == "llama"
        self.name = file.path.name
        self._file = file
        self._heads = {"attn_q": config.heads, "attn_k": config.kv_heads} if interleaved else {}

    def tensor(self, name: str) -> torch.Tensor:
        """A tensor in float32.

        :raises ~tilert_stream.errors.ConfigError: it is missing, or cannot be dequantised.
        """
        if name in _GLOBAL_NAMES:
            return self._tensor(_GLOBAL_NAMES[name])
        index, module = name.removeprefix("model.layers.").split(".", 1)
        module, kind = module.rsplit(".", 1)
        gguf_module = _LAYER_NAMES[module]
        tensor = self._tensor(f"blk.{index}.{gguf_module}.{kind}")
        heads = self._heads.get(gguf_module)
        return tensor if heads is None else _split_halves(tensor, heads)

    def _tensor(self, name: str) -> torch.Tensor:
        return torch.from_numpy(self._file.tensor(name))  # pyright: ignore[reportUnknownMemberType] -- untyped in torch


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
