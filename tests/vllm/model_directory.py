"""The demo model's GGUF file → a Hugging Face directory in float32, as vLLM reads models."""

from __future__ import annotations

import json
from pathlib import Path

import safetensors.torch
import torch

from tilert_engine.models.gguf_file import GGUFFile
from tilert_engine.models.gguf_model import describe_gguf
from tilert_engine.torch.gguf_tensors import GGUFTensors

OF_A_LAYER = (
    "input_layernorm",
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "post_attention_layernorm",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
)


def write_model_directory(gguf: Path, parent: Path) -> Path:
    """A directory of the file's own name, so that both are one model to a KV layout."""
    file = GGUFFile(gguf)
    model = describe_gguf(file)
    config = model.config
    directory = parent / model.name
    directory.mkdir(parents=True, exist_ok=True)
    if (directory / "model.safetensors").exists():
        return directory

    names = ["model.embed_tokens.weight", "model.norm.weight"]
    names += [
        f"model.layers.{i}.{part}.weight" for i in range(config.layers) for part in OF_A_LAYER
    ]
    if not config.tied_head:
        names.append("lm_head.weight")
    source = GGUFTensors(file, config)
    tensors: dict[str, torch.Tensor] = {name: source.tensor(name).contiguous() for name in names}
    eos = sorted(model.eos_ids)
    about = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "float32",
        "bos_token_id": model.bos_id,
        "eos_token_id": eos,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "max_position_embeddings": config.max_position_embeddings,
        "tie_word_embeddings": config.tied_head,
    }
    tokenizer = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": model.chat_template,
        **model.special_tokens,
    }
    (directory / "config.json").write_text(json.dumps(about))
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": eos}))
    (directory / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    model.tokenizer.save(str(directory / "tokenizer.json"))
    # Last: its presence says that the directory is whole.
    safetensors.torch.save_file(tensors, directory / "model.safetensors", {"format": "pt"})  # pyright: ignore[reportUnknownMemberType] -- untyped in safetensors
    return directory
