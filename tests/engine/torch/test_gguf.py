"""GGUF files: what is read, what is refused, and that both sources give the same model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import gguf
import pytest
import torch

from tests.engine.torch.answer import answer
from tests.engine.torch.tiny import (
    BOS,
    CHAT_TEMPLATE,
    EOS,
    VOCAB,
    Tiny,
    assert_close,
    reference_greedy,
    reference_logits,
    write_gguf,
    write_huggingface,
)
from tilert_engine.torch import Checkpoint, TorchDecode, TorchPrefill, load
from tilert_engine.torch.llama import Llama
from tilert_stream.errors import ConfigError
from tilert_stream.events import Limits, Sampling

CPU = torch.device("cpu")
PROMPT = [72, 101, 108, 108, 111, 44, 220]
Kind = gguf.GGMLQuantizationType


def loaded(path: Path) -> Checkpoint:
    return load(path, dtype=torch.float32, device=CPU)


@torch.inference_mode()
def last_logits(checkpoint: Checkpoint) -> torch.Tensor:
    llama = Llama(checkpoint, 32)
    buffer = llama.buffer(positions=len(PROMPT))
    return llama.logits(llama.hidden(torch.tensor(PROMPT), 0, buffer)).double()


@pytest.mark.parametrize(
    "tiny",
    [Tiny(), Tiny(tied=True), Tiny(kv_heads=1, head_dim=8), Tiny(kind="qwen2")],
    ids=["grouped", "tied", "one key head", "qwen2"],
)
def test_a_gguf_file_is_the_same_model_as_the_directory(tiny: Tiny, tmp_path: Path) -> None:
    file = loaded(write_gguf(tiny, tmp_path / "tiny.gguf"))
    directory = loaded(write_huggingface(tiny, tmp_path / "tiny"))
    # The file has the epsilon in float32.
    assert replace(file.config, rms_norm_eps=1e-5) == directory.config
    assert torch.equal(file.weights.embedding, directory.weights.embedding)
    assert torch.equal(file.weights.head, directory.weights.head)
    for ours, theirs in zip(file.weights.layers, directory.weights.layers, strict=True):
        assert torch.equal(ours.qkv, theirs.qkv)
        assert torch.equal(ours.gate_up, theirs.gate_up)
        assert torch.equal(ours.down, theirs.down)
        assert torch.equal(ours.output, theirs.output)
    assert_close(last_logits(file), reference_logits(tiny, PROMPT))
    engines = (
        TorchPrefill(file, max_seq_len=40, chunk=4),
        TorchDecode(file, slots=1, max_seq_len=40),
    )
    assert answer(*engines, PROMPT, Limits(20))[0] == reference_greedy(tiny, PROMPT, 20)


@pytest.mark.parametrize(
    "kind", [Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_0, Kind.Q4_1], ids=lambda kind: kind.name
)
def test_quantised_tensors_are_what_the_package_makes_of_them(
    tmp_path: Path, kind: gguf.GGMLQuantizationType
) -> None:
    tiny = Tiny(hidden=64, inner=96)
    checkpoint = loaded(write_gguf(tiny, tmp_path / "tiny.gguf", quantisation=kind))
    tensors = {
        name: torch.from_numpy(gguf.dequantize(gguf.quantize(t.numpy(), kind), kind))  # pyright: ignore[reportUnknownMemberType] -- untyped in torch
        if t.dim() == 2
        else t
        for name, t in tiny.tensors().items()
    }
    assert torch.equal(checkpoint.weights.head, tensors["lm_head.weight"])
    expected = reference_logits(tiny, PROMPT, tensors=tensors)
    assert_close(last_logits(checkpoint), expected)


def test_metadata_becomes_the_checkpoints(tiny: Tiny, tmp_path: Path) -> None:
    checkpoint = loaded(write_gguf(tiny, tmp_path / "some-model.gguf"))
    assert checkpoint.name == "some-model"
    assert checkpoint.max_position_embeddings == tiny.positions
    assert checkpoint.chat_template == CHAT_TEMPLATE
    assert checkpoint.special_tokens == {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    assert (checkpoint.bos_id, checkpoint.add_bos) == (BOS, False)
    # <|endoftext|> ends an answer too, though the metadata names <|im_end|> alone.
    assert checkpoint.eos_ids == {EOS, VOCAB.index("<|endoftext|>")}
    assert checkpoint.default_sampling == Sampling()


def test_a_bos_token_is_added_where_the_file_says_so(tiny: Tiny, tmp_path: Path) -> None:
    checkpoint = loaded(write_gguf(tiny, tmp_path / "tiny.gguf", add_bos=True))
    assert checkpoint.add_bos
    the = VOCAB.index("the")
    assert checkpoint.tokenizer.encode("the").ids == [BOS, the]
    assert checkpoint.tokenizer.encode("the", add_special_tokens=False).ids == [the]


def test_rope_factors_divide_frequencies(tiny: Tiny, tmp_path: Path) -> None:
    equal = [4.0] * (tiny.head_dim // 2)
    scaled = loaded(write_gguf(tiny, tmp_path / "scaled.gguf", rope_factors=equal))
    linear = Tiny(rope={"rope_type": "linear", "factor": 4.0})
    assert_close(last_logits(scaled), reference_logits(linear, PROMPT))
    short = loaded(write_gguf(tiny, tmp_path / "short.gguf", rope_factors=equal[1:]))
    with pytest.raises(ConfigError, match="3 rope factors, a head of 8 dimensions needs 4"):
        Llama(short, 32)


def test_linear_rope_scaling_is_read(tiny: Tiny, tmp_path: Path) -> None:
    path = write_gguf(tiny, tmp_path / "tiny.gguf", rope_type=gguf.RopeScalingType.LINEAR)
    linear = Tiny(rope={"rope_type": "linear", "factor": 2.0})
    assert_close(last_logits(loaded(path)), reference_logits(linear, PROMPT))


def test_what_is_not_supported_is_named(tiny: Tiny, tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    with pytest.raises(ConfigError, match="architecture is 'gemma3', supported are llama, qwen2"):
        loaded(write_gguf(tiny, path, architecture="gemma3"))
    with pytest.raises(ConfigError, match=r"rope.scaling.type is 'yarn'"):
        loaded(write_gguf(tiny, path, rope_type=gguf.RopeScalingType.YARN))
    with pytest.raises(ConfigError, match=r"ggml.model is 'llama', only 'gpt2'"):
        loaded(write_gguf(tiny, path, model="llama"))
    with pytest.raises(ConfigError, match=r"ggml.pre is 'viking', known are gpt-2, llama-bpe"):
        loaded(write_gguf(tiny, path, pre="viking"))


def test_what_is_missing_or_misshapen_is_named(tiny: Tiny, tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    with pytest.raises(ConfigError, match=r"'blk.1.attn_k.weight' is missing; it has 20 tensors"):
        loaded(write_gguf(tiny, path, leave_out="blk.1.attn_k.weight"))
    wrong = Tiny(kind="llama", heads=4, kv_heads=4)
    write_gguf(wrong, path)
    # The same tensors under a header that tells of fewer key heads.
    content = path.read_bytes()
    key = b"llama.attention.head_count_kv"
    start = content.index(key) + len(key) + 4
    assert content[start : start + 4] == b"\4\0\0\0"
    path.write_bytes(content[:start] + b"\2" + content[start + 1 :])
    with pytest.raises(ConfigError, match=r"k_proj.weight' has shape \(32, 32\).*\(16, 32\)"):
        loaded(path)


def test_no_cut_of_a_file_is_taken_for_a_model(tiny: Tiny, tmp_path: Path) -> None:
    content = write_gguf(tiny, tmp_path / "tiny.gguf").read_bytes()
    path = tmp_path / "cut.gguf"
    for size in [*range(0, len(content), 997), len(content) - 33]:
        path.write_bytes(content[:size])
        with pytest.raises(ConfigError, match=r"it is no GGUF file|truncated"):
            loaded(path)


def test_what_is_no_gguf_file_is_told(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"PK\3\4 a wheel, perhaps")
    with pytest.raises(ConfigError, match=r"begins with b'PK.*a GGUF file begins with b'GGUF'"):
        loaded(path)
    path.write_bytes(b"GGUF" + (1).to_bytes(4, "little") + bytes(16))
    with pytest.raises(ConfigError, match="version 1, versions 2 and 3"):
        loaded(path)
    with pytest.raises(ConfigError, match="nowhere' does not exist"):
        loaded(tmp_path / "nowhere")


TEXT = "It's  12345 x\n\n the Straße 日本 ​🌶 I'LL\tgo!?\r\n  "
SPLITS = {
    "gpt-2": ["It", "'s", " ", " 12345", " x", "\n\n", " the", " Straße", " 日本", " ​🌶"],
    "smollm": ["It", "'s", "  ", "1", "2", "3", "4", "5", " x", "\n\n", " the", " Straße"],
    "llama-bpe": ["It", "'s", " ", " ", "123", "45", " x", "\n\n", " the", " Straße", " 日本"],
    "qwen2": ["It", "'s", " ", " ", "1", "2", "3", "4", "5", " x", "\n\n", " the", " Straße"],
}


@pytest.mark.parametrize("pre", SPLITS)
def test_text_is_split_as_the_file_says(tiny: Tiny, tmp_path: Path, pre: str) -> None:
    tokenizer = loaded(write_gguf(tiny, tmp_path / "tiny.gguf", pre=pre)).tokenizer
    pieces = tokenizer.pre_tokenizer
    assert pieces is not None
    spans = [TEXT[slice(*span)] for _, span in pieces.pre_tokenize_str(TEXT)]
    assert spans[: len(SPLITS[pre])] == SPLITS[pre]
    encoded = tokenizer.encode("<|im_start|>" + TEXT)
    assert encoded.ids[0] == BOS
    assert tokenizer.decode(encoded.ids) == TEXT
