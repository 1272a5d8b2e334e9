"""The forward pass against a float64 reference, for every variant of the family."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.engine.torch.answer import GREEDY, answer, prefill
from tests.engine.torch.tiny import (
    Tiny,
    assert_close,
    reference_greedy,
    reference_logits,
    write_huggingface,
)
from tilert_engine.torch import Checkpoint, TorchDecode, TorchPrefill, load
from tilert_engine.torch.llama import Llama
from tilert_stream.events import Limits

LLAMA3: dict[str, object] = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
VARIANTS = {
    "grouped": Tiny(),
    "one key head": Tiny(kv_heads=1),
    "no groups": Tiny(kv_heads=4),
    "tied": Tiny(tied=True),
    "head_dim not hidden / heads": Tiny(head_dim=16),
    "biases": Tiny(kind="qwen2"),
    "mistral": Tiny(kind="mistral"),
    "linear rope": Tiny(rope={"rope_type": "linear", "factor": 4.0}),
    "llama3 rope": Tiny(rope=LLAMA3, theta=500.0),
}
PROMPT = [72, 101, 108, 108, 111, 44, 220, 7, 3, 99, 250, 0, 17]


@pytest.fixture(params=VARIANTS.values(), ids=tuple(VARIANTS))
def variant(request: pytest.FixtureRequest) -> Tiny:
    assert isinstance(request.param, Tiny)
    return request.param


@pytest.fixture
def loaded(variant: Tiny, tmp_path: Path) -> Checkpoint:
    path = write_huggingface(variant, tmp_path / "model")
    return load(path, dtype=torch.float32, device=torch.device("cpu"))


@torch.inference_mode()
def test_logits_equal_the_reference(variant: Tiny, loaded: Checkpoint) -> None:
    llama = Llama(loaded, 32)
    buffer = llama.buffer(positions=len(PROMPT))
    # A first pass over several tokens, one over several more, then one by one.
    for start, stop in [(0, 5), (5, 9), (9, 10), (10, 11), (11, 12), (12, 13)]:
        hidden = llama.hidden(torch.tensor(PROMPT[start:stop]), start, buffer)
        expected = reference_logits(variant, PROMPT[:stop])
        assert_close(llama.logits(hidden).double(), expected)


def test_split_path_equals_one_undivided_forward(variant: Tiny, loaded: Checkpoint) -> None:
    prefill_engine = TorchPrefill(loaded, max_seq_len=48, chunk=4)
    decode_engine = TorchDecode(loaded, slots=2, max_seq_len=48, ar_steps=5)
    ids, finished = answer(prefill_engine, decode_engine, PROMPT, Limits(24), slot=1)
    assert finished.reason == "length"
    assert ids == reference_greedy(variant, PROMPT, 24)


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 8, 13])
@pytest.mark.parametrize("chunk", [1, 4, 256])
def test_a_prompt_in_chunks_gives_the_cache_of_a_whole_one(
    checkpoint: Checkpoint, length: int, chunk: int
) -> None:
    whole = prefill(TorchPrefill(checkpoint, max_seq_len=48, chunk=64), PROMPT[:length], Limits(1))
    parts = prefill(
        TorchPrefill(checkpoint, max_seq_len=48, chunk=chunk), PROMPT[:length], Limits(1), GREEDY
    )
    assert parts.first == whole.first
    assert parts.kv.seq_len == length
    assert parts.usage.prompt_tokens == length
    torch.testing.assert_close(parts.kv.keys, whole.kv.keys)
    torch.testing.assert_close(parts.kv.values, whole.kv.values)


def test_a_prompt_takes_one_turn_a_chunk(checkpoint: Checkpoint) -> None:
    engine = TorchPrefill(checkpoint, max_seq_len=48, chunk=4)
    run = engine.open(PROMPT, Limits(1), GREEDY)
    outputs = [engine.advance(run) for _ in range(4)]
    assert [output is None for output in outputs] == [True, True, True, False]
    with pytest.raises(RuntimeError, match="over"):
        engine.advance(run)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_one_token_is_the_same_on_any_number_of_threads(threads: int) -> None:
    from tilert_engine.torch.linear import linear

    generator = torch.Generator().manual_seed(1)
    weight, x = (torch.randn(n, 24, generator=generator) for n in (36, 1))
    bias = torch.randn(36, generator=generator)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        torch.testing.assert_close(linear(x, weight, bias), x @ weight.T + bias)
        torch.testing.assert_close(linear(x, weight), x @ weight.T)
    finally:
        torch.set_num_threads(before)
