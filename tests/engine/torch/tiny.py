"""Random Llama models of a few kilobytes, written as the checkpoints that users have.

Beside them a reference forward pass, float64, position by position and head by head, which shares
no code with the engine.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol, cast

import gguf
import safetensors.torch
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

if TYPE_CHECKING:
    from pathlib import Path

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
MERGES = [("t", "h"), ("th", "e"), ("Ġ", "the")]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
VOCAB = [*SPECIAL, *ALPHABET, *("".join(pair) for pair in MERGES)]
BOS, EOS = 1, 2
CHAT_TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"


@dataclass(frozen=True)
class Tiny:
    """Dimensions; ``tensors()`` are a function of them and the seed."""

    kind: str = "llama"
    hidden: int = 32
    inner: int = 48
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 8
    vocab: int = len(VOCAB)
    tied: bool = False
    positions: int = 64
    theta: float = 10000.0
    rope: dict[str, object] | None = None
    seed: int = 0
    changes: dict[str, object] = field(default_factory=dict[str, object])
    """Laid over ``config.json``, to make it wrong."""

    def tensors(self) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(self.seed)

        def matrix(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator) * 0.3

        def norm() -> torch.Tensor:
            return 1 + matrix(self.hidden) * 0.3

        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        out = {"model.embed_tokens.weight": matrix(self.vocab, self.hidden) * 3}
        for layer in range(self.layers):
            prefix = f"model.layers.{layer}"
            out |= {
                f"{prefix}.input_layernorm.weight": norm(),
                f"{prefix}.self_attn.q_proj.weight": matrix(q, self.hidden),
                f"{prefix}.self_attn.k_proj.weight": matrix(kv, self.hidden),
                f"{prefix}.self_attn.v_proj.weight": matrix(kv, self.hidden),
                f"{prefix}.self_attn.o_proj.weight": matrix(self.hidden, q),
                f"{prefix}.post_attention_layernorm.weight": norm(),
                f"{prefix}.mlp.gate_proj.weight": matrix(self.inner, self.hidden),
                f"{prefix}.mlp.up_proj.weight": matrix(self.inner, self.hidden),
                f"{prefix}.mlp.down_proj.weight": matrix(self.hidden, self.inner),
            }
            if self.kind == "qwen2":
                sizes = {"q": q, "k": kv, "v": kv}
                out |= {
                    f"{prefix}.self_attn.{name}_proj.bias": matrix(size)
                    for name, size in sizes.items()
                }
        out["model.norm.weight"] = norm()
        if not self.tied:
            out["lm_head.weight"] = matrix(self.vocab, self.hidden)
        return out

    def config(self) -> dict[str, object]:
        return {
            "model_type": self.kind,
            "vocab_size": self.vocab,
            "hidden_size": self.hidden,
            "intermediate_size": self.inner,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "rms_norm_eps": 1e-5,
            "rope_theta": self.theta,
            "rope_scaling": self.rope,
            "max_position_embeddings": self.positions,
            "tie_word_embeddings": self.tied,
            "hidden_act": "silu",
            "bos_token_id": BOS,
            "eos_token_id": EOS,
            **self.changes,
        }

    def changed(self, **changes: object) -> Tiny:
        return replace(self, changes=changes)


class _Save(Protocol):
    def __call__(self, tensors: dict[str, torch.Tensor], filename: Path, /) -> None: ...


_save = cast("_Save", safetensors.torch.save_file)  # pyright: ignore[reportUnknownMemberType] -- half typed


def tokenizer() -> Tokenizer:
    built = Tokenizer(models.BPE({token: i for i, token in enumerate(VOCAB)}, MERGES))
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    built.decoder = decoders.ByteLevel()
    built.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])  # pyright: ignore[reportUnknownMemberType] -- untyped in tokenizers
    return built


def write_huggingface(tiny: Tiny, directory: Path, *, shards: int = 1) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(tiny.config()))
    tokenizer().save(str(directory / "tokenizer.json"))
    tensors = tiny.tensors()
    if shards == 1:
        _save(tensors, directory / "model.safetensors")
        return directory
    placed: dict[str, str] = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = {name: tensors[name] for name in list(tensors)[shard::shards]}
        _save(part, directory / file)
        placed |= dict.fromkeys(part, file)
    index = {"metadata": {}, "weight_map": placed}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return directory


GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.layers.": "blk.",
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


def write_gguf(
    tiny: Tiny,
    path: Path,
    *,
    architecture: str | None = None,
    pre: str = "gpt-2",
    model: str = "gpt2",
    quantisation: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    add_bos: bool = False,
    leave_out: str | None = None,
    rope_factors: list[float] | None = None,
    rope_type: gguf.RopeScalingType | None = None,
) -> Path:
    architecture = architecture or tiny.kind
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(tiny.positions)
    writer.add_embedding_length(tiny.hidden)
    writer.add_block_count(tiny.layers)
    writer.add_feed_forward_length(tiny.inner)
    writer.add_head_count(tiny.heads)
    writer.add_head_count_kv(tiny.kv_heads)
    writer.add_key_length(tiny.head_dim)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(tiny.theta)
    writer.add_rope_dimension_count(tiny.head_dim)
    if rope_type is not None:
        writer.add_rope_scaling_type(rope_type)
        writer.add_rope_scaling_factor(2.0)
    writer.add_tokenizer_model(model)
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(VOCAB)
    types = [gguf.TokenType.CONTROL] * len(SPECIAL)
    writer.add_token_types([*types, *[gguf.TokenType.NORMAL] * (len(VOCAB) - len(SPECIAL))])
    writer.add_token_merges([" ".join(pair) for pair in MERGES])
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(EOS)
    writer.add_add_bos_token(add_bos)
    writer.add_chat_template(CHAT_TEMPLATE)
    if rope_factors is not None:
        writer.add_tensor("rope_freqs.weight", torch.tensor(rope_factors).numpy())
    for name, tensor in tiny.tensors().items():
        stored = tensor
        for ours, theirs in GGUF_NAMES.items():
            name = name.replace(ours, theirs)
        heads = {"attn_q.": tiny.heads, "attn_k.": tiny.kv_heads}
        for part, count in heads.items():
            if part in name and architecture == "llama":
                # as llama.cpp's converter permutes them
                pairs = stored.reshape(count, 2, stored.shape[0] // count // 2, -1)
                stored = pairs.swapaxes(1, 2).reshape(stored.shape)
        if name == leave_out:
            continue
        kind = quantisation if stored.dim() == 2 else gguf.GGMLQuantizationType.F32
        data = gguf.quantize(stored.contiguous().numpy(), kind)
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def frequencies(tiny: Tiny) -> list[float]:
    out: list[float] = []
    for i in range(tiny.head_dim // 2):
        f = tiny.theta ** (-2 * i / tiny.head_dim)
        rope = cast("dict[str, float]", tiny.rope or {})
        kind = (tiny.rope or {}).get("rope_type")
        if kind == "linear":
            f /= rope["factor"]
        if kind == "llama3":
            old, low, high = (
                rope["original_max_position_embeddings"],
                rope["low_freq_factor"],
                rope["high_freq_factor"],
            )
            wavelength = 2 * math.pi / f
            if wavelength > old / low:
                f /= rope["factor"]
            elif wavelength >= old / high:
                smooth = (old / wavelength - low) / (high - low)
                f = (1 - smooth) * f / rope["factor"] + smooth * f
        out.append(f)
    return out


def reference_logits(
    tiny: Tiny, ids: list[int], *, tensors: dict[str, torch.Tensor] | None = None
) -> torch.Tensor:
    """Logits of the last position, float64 ``[vocab]``, by one undivided forward pass."""
    w = {name: tensor.double() for name, tensor in (tensors or tiny.tensors()).items()}
    n, half = len(ids), tiny.head_dim // 2
    angles = torch.outer(
        torch.arange(n, dtype=torch.float64),
        torch.tensor(frequencies(tiny), dtype=torch.float64),
    )
    turn = torch.polar(torch.ones_like(angles), angles)

    def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight

    def rotate(x: torch.Tensor) -> torch.Tensor:
        turned = torch.complex(x[:, :half].contiguous(), x[:, half:].contiguous()) * turn
        return torch.cat((turned.real, turned.imag), -1)

    x = w["model.embed_tokens.weight"][ids]
    for layer in range(tiny.layers):
        p = f"model.layers.{layer}"
        h = norm(x, w[f"{p}.input_layernorm.weight"])
        q, k, v = (
            h @ w[f"{p}.self_attn.{name}_proj.weight"].T
            + w.get(f"{p}.self_attn.{name}_proj.bias", torch.zeros(1, dtype=torch.float64))
            for name in "qkv"
        )
        mixed: list[torch.Tensor] = []
        for head in range(tiny.heads):
            mine = slice(head * tiny.head_dim, (head + 1) * tiny.head_dim)
            shared = head // (tiny.heads // tiny.kv_heads)
            theirs = slice(shared * tiny.head_dim, (shared + 1) * tiny.head_dim)
            scores = rotate(q[:, mine]) @ rotate(k[:, theirs]).T / math.sqrt(tiny.head_dim)
            hidden_future = torch.ones(n, n, dtype=torch.bool).triu(1)
            weights = scores.masked_fill(hidden_future, -math.inf).softmax(-1)
            mixed.append(weights @ v[:, theirs])
        x = x + torch.cat(mixed, -1) @ w[f"{p}.self_attn.o_proj.weight"].T
        h = norm(x, w[f"{p}.post_attention_layernorm.weight"])
        gate = h @ w[f"{p}.mlp.gate_proj.weight"].T
        up = h @ w[f"{p}.mlp.up_proj.weight"].T
        x = x + (gate / (1 + (-gate).exp()) * up) @ w[f"{p}.mlp.down_proj.weight"].T
    projection = w["model.embed_tokens.weight" if tiny.tied else "lm_head.weight"]
    return norm(x[-1], w["model.norm.weight"]) @ projection.T


def assert_close(ours: torch.Tensor, reference: torch.Tensor) -> None:
    """Float32 against float64, where logits are of the size of 10."""
    torch.testing.assert_close(ours, reference, atol=1e-4, rtol=1e-4)


def reference_greedy(tiny: Tiny, prompt: list[int], count: int) -> list[int]:
    """``count`` greedy tokens, the whole forward pass anew for each."""
    ids = list(prompt)
    for _ in range(count):
        ids.append(int(reference_logits(tiny, ids).argmax()))
    return ids[len(prompt) :]
