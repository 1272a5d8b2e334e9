"""Damage of any kind is told as a ConfigError: never a foreign exception, never terabytes."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path

import pytest
import torch

from tests.engine.torch.tiny import Tiny, write_gguf, write_huggingface
from tilert_engine.torch import Checkpoint, load
from tilert_stream.errors import ConfigError

UINT32, INT32, FLOAT32, ARRAY = 4, 5, 6, 9


def loaded(path: Path) -> Checkpoint:
    return load(path, dtype=torch.float32, device=torch.device("cpu"))


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


@pytest.fixture
def file(tiny: Tiny, tmp_path: Path) -> Path:
    return write_gguf(tiny, tmp_path / "tiny.gguf")


@pytest.fixture
def directory(tiny: Tiny, tmp_path: Path) -> Path:
    return write_huggingface(tiny, tmp_path / "tiny")


def set_scalar(file: Path, key: str, kind: int, value: bytes) -> None:
    """Put another 4-byte value under ``key``."""
    content = file.read_bytes()
    start = content.index(text(key)) + len(text(key))
    file.write_bytes(content[:start] + struct.pack("<I", kind) + value + content[start + 8 :])


@pytest.mark.parametrize("seed", range(8))
def test_any_bytes_of_a_header_may_be_damaged(file: Path, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    sound = file.read_bytes()
    end = sound.index(text("blk.1.attn_q.weight"))
    outcomes: set[str] = set()
    for number in range(30):
        content = bytearray(sound)
        for _ in range(chance.choice([1, 2, 5])):
            place, width = chance.randrange(end), chance.choice([1, 4, 8])
            content[place : place + width] = bytes(chance.choices(b"\0\1\x7f\x80\xff", k=width))
        path = tmp_path / f"{number}.gguf"
        path.write_bytes(content)
        try:
            loaded(path)
            outcomes.add("loaded")
        except ConfigError:
            outcomes.add("refused")
    assert "refused" in outcomes


@pytest.mark.parametrize(
    "header",
    [
        struct.pack("<QQ", 2**60, 0),
        struct.pack("<QQ", 0, 2**60),
        struct.pack("<QQ", 0, 1) + struct.pack("<Q", 2**63),
        struct.pack("<QQ", 0, 1) + text("k") + struct.pack("<IIQ", ARRAY, UINT32, 2**62),
        struct.pack("<QQ", 0, 1) + text("k") + struct.pack("<IIQ", ARRAY, ARRAY, 2**40),
        struct.pack("<QQ", 0, 1)
        + text("k")
        + struct.pack("<I", ARRAY)
        + struct.pack("<IQ", ARRAY, 1) * 5000,
        struct.pack("<QQ", 1, 0) + text("t") + struct.pack("<I", 2**31),
    ],
    ids=["tensors", "pairs", "string", "array", "arrays", "nested", "dimensions"],
)
def test_a_header_that_promises_too_much_is_refused(tmp_path: Path, header: bytes) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<I", 3) + header)
    with pytest.raises(ConfigError, match=r"model\.gguf: the GGUF header cannot be read"):
        loaded(path)


def test_a_merge_of_unknown_tokens_is_named(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content.replace(text("Ġ the"), text("Ġ thx")))
    with pytest.raises(ConfigError, match=r"merges has 'Ġ thx'.*must be in tokenizer.ggml.tokens"):
        loaded(file)


@pytest.mark.parametrize("token_id", [-1, 10**6])
@pytest.mark.parametrize("name", ["bos", "eos"])
def test_a_special_id_outside_the_vocabulary_has_no_text(
    file: Path, name: str, token_id: int
) -> None:
    key = f"tokenizer.ggml.{name}_token_id"
    set_scalar(file, key, INT32, struct.pack("<i", token_id))
    assert f"{name}_token" not in loaded(file).special_tokens


def test_shapes_are_checked_before_memory_is_taken(file: Path, directory: Path) -> None:
    # 2^31 columns of 32 floats are 256 GiB.
    key = "llama.feed_forward_length"
    set_scalar(file, key, UINT32, struct.pack("<I", 2**31 - 1))
    with pytest.raises(ConfigError, match=r"gate_proj.weight' has shape \(48, 32\).*2147483647"):
        loaded(file)
    config = Tiny().changed(intermediate_size=10**12).config()
    (directory / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=r"gate_proj.weight' has shape \(48, 32\).*1000000000000"):
        loaded(directory)


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_scales_are_above_zero_and_finite(file: Path, value: float) -> None:
    number = struct.pack("<f", value)
    set_scalar(file, "llama.rope.freq_base", FLOAT32, number)
    with pytest.raises(ConfigError, match=f"rope_theta is {value}; it must be above 0 and finite"):
        loaded(file)


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rms_norm_eps": -1e-5}, "rms_norm_eps is -1e-05"),
        ({"rope_theta": 0}, r"rope_theta is 0\.0"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 0}}, r"rope factor is 0\.0"),
        ({"rope_scaling": LLAMA3 | {"factor": -8}}, r"rope factor is -8\.0"),
        ({"rope_scaling": LLAMA3 | {"high_freq_factor": 1}}, r"low_freq_factor is 0\.0"),
        (
            {"rope_scaling": LLAMA3 | {"original_max_position_embeddings": 0}},
            "original_max_position is 0",
        ),
    ],
    ids=["eps", "theta", "linear", "llama3", "ramp", "original"],
)
def test_a_number_that_no_model_has_is_named(
    directory: Path, changes: dict[str, object], message: str
) -> None:
    (directory / "config.json").write_text(json.dumps(Tiny().changed(**changes).config()))
    with pytest.raises(ConfigError, match=message):
        loaded(directory)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"temperature": -1}', r"'temperature' is -1\.0; it must be at least 0"),
        ('{"temperature": NaN}', "'temperature' is nan; it must be at least 0"),
        ('{"top_p": 0}', r"'top_p' is 0\.0; it must be above 0, at most 1"),
        ('{"top_p": 1.5}', r"'top_p' is 1\.5"),
        ('{"top_k": -2}', "'top_k' is -2; it must be at least 0, or -1"),
        ('{"top_k": 2.5}', r"'top_k' is 2\.5; it must be an integer"),
        ('{"min_p": 2}', r"'min_p' is 2\.0; it must be between 0 and 1"),
    ],
)
def test_a_recommended_sampling_that_cannot_be_is_named(
    directory: Path, content: str, message: str
) -> None:
    (directory / "generation_config.json").write_text(content)
    with pytest.raises(ConfigError, match=message):
        loaded(directory)


def test_text_that_is_no_utf8_and_endless_json_are_named(directory: Path) -> None:
    template = directory / "chat_template.jinja"
    template.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"chat_template\.jinja is not UTF-8"):
        loaded(directory)
    template.unlink()
    (directory / "config.json").write_text("[" * 100_000)
    with pytest.raises(ConfigError, match=r"config\.json is no JSON"):
        loaded(directory)


def test_what_cannot_be_opened_is_told(directory: Path) -> None:
    (directory / "config.json").unlink()
    (directory / "config.json").mkdir()
    with pytest.raises(ConfigError, match=r"cannot be read: .*Is a directory"):
        loaded(directory)
