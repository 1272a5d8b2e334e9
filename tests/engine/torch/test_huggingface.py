"""Hugging Face directories: what is read, and what is refused with which words."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
import torch

from tests.engine.torch.tiny import (
    BOS,
    EOS,
    Tiny,
    assert_close,
    reference_logits,
    write_huggingface,
)
from tilert_engine.models.config import LinearScaling, Llama3Scaling
from tilert_engine.torch import Checkpoint, load
from tilert_engine.torch.llama import Llama
from tilert_stream.errors import ConfigError
from tilert_stream.events import Sampling

PROMPT = [72, 101, 108]


def loaded(path: Path) -> Checkpoint:
    return load(path, dtype=torch.float32, device=torch.device("cpu"))


@pytest.fixture
def path(tiny: Tiny, tmp_path: Path) -> Path:
    return write_huggingface(tiny, tmp_path / "model")


@torch.inference_mode()
def test_shards_are_one_model(tiny: Tiny, tmp_path: Path) -> None:
    checkpoint = loaded(write_huggingface(tiny, tmp_path / "model", shards=3))
    llama = Llama(checkpoint, 32)
    hidden = llama.hidden(torch.tensor(PROMPT), 0, llama.buffer(positions=3))
    assert_close(llama.logits(hidden).double(), reference_logits(tiny, PROMPT))


def test_a_missing_shard_is_named(tiny: Tiny, tmp_path: Path) -> None:
    path = write_huggingface(tiny, tmp_path / "model", shards=2)
    (path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"model-00002-of-00002\.safetensors is missing"):
        loaded(path)


def test_the_least_that_a_directory_has(path: Path) -> None:
    checkpoint = loaded(path)
    assert checkpoint.name == "model"
    assert checkpoint.eos_ids == {EOS}
    assert (checkpoint.bos_id, checkpoint.add_bos) == (BOS, False)
    assert checkpoint.chat_template is None
    assert checkpoint.special_tokens == {}
    assert checkpoint.default_sampling == Sampling()


def test_the_neighbours_of_the_weights_are_read(path: Path) -> None:
    (path / "generation_config.json").write_text(
        json.dumps({"eos_token_id": [EOS, 7], "temperature": 0.6, "top_k": 20, "top_p": 0.9})
    )
    (path / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "bos_token": {"content": "<|im_start|>", "special": True},
                "eos_token": "<|endoftext|>",
                "unk_token": None,
                "chat_template": "from the configuration",
            }
        )
    )
    checkpoint = loaded(path)
    assert checkpoint.eos_ids == {0, EOS, 7}
    assert checkpoint.special_tokens == {
        "bos_token": "<|im_start|>",
        "eos_token": "<|endoftext|>",
    }
    assert checkpoint.default_sampling == Sampling(temperature=0.6, top_k=20, top_p=0.9)
    assert checkpoint.chat_template == "from the configuration"
    (path / "chat_template.jinja").write_text("from the file", encoding="utf-8")
    assert loaded(path).chat_template == "from the file"


def test_of_several_chat_templates_the_default_is_taken(path: Path) -> None:
    templates = [{"name": "tool_use", "template": "a"}, {"name": "default", "template": "b"}]
    file = path / "tokenizer_config.json"
    file.write_text(json.dumps({"chat_template": templates}))
    assert loaded(path).chat_template == "b"
    file.write_text(json.dumps({"chat_template": templates[:1]}))
    assert loaded(path).chat_template is None


def test_rope_parameters_of_either_age_are_read(tmp_path: Path) -> None:
    old = Tiny(rope={"type": "linear", "factor": 2.0})
    assert loaded(write_huggingface(old, tmp_path / "old")).config.rope_scaling == LinearScaling(2)
    llama3 = {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 32,
        "low_freq_factor": 1,
        "high_freq_factor": 4,
        "original_max_position_embeddings": 8192,
    }
    new = Tiny().changed(rope_theta=None, rope_parameters=llama3)
    config = loaded(write_huggingface(new, tmp_path / "new")).config
    assert config.rope_theta == 500000.0
    assert config.rope_scaling == Llama3Scaling(32, 1, 4, 8192)
    default = Tiny().changed(rope_parameters={"rope_type": "default", "rope_theta": 5.0})
    config = loaded(write_huggingface(default, tmp_path / "default")).config
    assert (config.rope_theta, config.rope_scaling) == (5.0, None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gpt_oss"}, "'gpt_oss', supported are llama, mistral, qwen2"),
        ({"model_type": None}, "'model_type' is missing"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu', supported is 'silu'"),
        ({"attention_bias": True}, "attention_bias is true"),
        ({"mlp_bias": True}, "mlp_bias is true"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "'yarn', supported are default, linear, llama3"),
        ({"rope_scaling": 3}, "'rope_scaling' is 3; it must be an object"),
        ({"model_type": "mistral", "sliding_window": 32}, "sliding_window is 32, below .* 64"),
        ({"vocab_size": "many"}, "'vocab_size' is 'many'; it must be an integer"),
        ({"rms_norm_eps": True}, "'rms_norm_eps' is True; it must be a number"),
        ({"tie_word_embeddings": 1}, "'tie_word_embeddings' is 1; it must be true or false"),
        ({"eos_token_id": ["x"]}, "'eos_token_id' is .* it must be an integer or a list"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
        ({"num_key_value_heads": 3}, "4 attention heads and 3 key/value heads"),
        ({"num_hidden_layers": 0}, "layers is 0; it must be at least 1"),
        ({"head_dim": 7}, "head_dim is 7; rotary embedding needs an even number"),
        ({"num_hidden_layers": 3}, r"'model.layers.2.input_layernorm.weight' is missing"),
        ({"hidden_size": 16}, r"embed_tokens.weight' has shape \(262, 32\), .* \(262, 16\)"),
        ({"vocab_size": 99}, r"embed_tokens.weight' has shape \(262, 32\), .* \(99, 32\)"),
    ],
    ids=itertools.count(),
)
def test_a_wrong_configuration_is_named(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    path = write_huggingface(Tiny().changed(**changes), tmp_path / "model")
    with pytest.raises(ConfigError, match=message):
        loaded(path)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_missing_or_damaged_file_is_named(path: Path, name: str) -> None:
    content = (path / name).read_bytes()
    for size in (0, 5, len(content) // 2, len(content) - 1):
        (path / name).write_bytes(content[:size])
        with pytest.raises(ConfigError, match=name):
            loaded(path)
    (path / name).unlink()
    with pytest.raises(ConfigError, match=f"{name} is missing"):
        loaded(path)


@pytest.mark.parametrize("content", [b"[]", b"null", b"\xff"])
def test_a_configuration_that_is_no_object_is_told(path: Path, content: bytes) -> None:
    (path / "config.json").write_bytes(content)
    with pytest.raises(ConfigError, match=r"config\.json"):
        loaded(path)


def test_an_index_without_a_map_is_told(path: Path) -> None:
    (path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(ConfigError, match="no 'weight_map'"):
        loaded(path)
