"""The same code on CUDA: what differs there, shown on any machine where that can be done."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn import functional as nn

from tests.engine.torch.answer import GREEDY, answer, prefill
from tests.engine.torch.tiny import Tiny, reference_greedy, write_huggingface
from tilert_engine.torch import TorchDecode, TorchPrefill, load
from tilert_engine.torch.sampler import Sampler
from tilert_stream.errors import EngineFault
from tilert_stream.events import Limits, Sampling

PROMPT = [72, 101, 108, 108, 111, 44, 220]
SAMPLINGS = [
    pytest.param(GREEDY, id="greedy"),
    pytest.param(Sampling(seed=4), id="plain"),
    pytest.param(Sampling(seed=4, min_p=0.1), id="min_p"),
    pytest.param(Sampling(seed=4, top_k=40), id="top_k"),
    pytest.param(Sampling(seed=4, top_p=0.9), id="top_p"),
]
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")


def engines(path: Path, device: str) -> tuple[TorchPrefill, TorchDecode]:
    checkpoint = load(path, dtype=torch.float32, device=torch.device(device))
    return (
        TorchPrefill(checkpoint, max_seq_len=48, chunk=4),
        TorchDecode(checkpoint, slots=2, max_seq_len=48, ar_steps=5),
    )


@pytest.fixture
def path(tiny: Tiny, tmp_path: Path) -> Path:
    return write_huggingface(tiny, tmp_path / "tiny")


def test_attention_may_order_its_result_in_memory_as_it_likes(
    tiny: Tiny, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attend = nn.scaled_dot_product_attention

    def as_on_cuda(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        # CUDA's kernels write queries first, heads second.
        mixed = attend(query, key, value, attn_mask=attn_mask)
        return mixed.transpose(1, 2).contiguous().transpose(1, 2)

    monkeypatch.setattr(nn, "scaled_dot_product_attention", as_on_cuda)
    ids, _ = answer(*engines(path, "cpu"), PROMPT, Limits(12))
    assert ids == reference_greedy(tiny, PROMPT, 12)


@needs_cuda
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_cuda_gives_the_answers_of_the_cpu(path: Path, sampling: Sampling) -> None:
    expected = answer(*engines(path, "cpu"), PROMPT, Limits(24), sampling)
    assert answer(*engines(path, "cuda"), PROMPT, Limits(24), sampling) == expected


@needs_cuda
def test_attention_is_not_planned_anew_for_every_length(path: Path) -> None:
    torch.backends.cuda.enable_cudnn_sdp(enabled=True)
    engines(path, "cuda")
    assert not torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]  # torch


@needs_cuda
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_nan_on_cuda_leaves_the_device_usable(path: Path, sampling: Sampling) -> None:
    prefill_engine, decode_engine = engines(path, "cuda")
    expected = answer(prefill_engine, decode_engine, PROMPT, Limits(12), sampling)
    kv = prefill(prefill_engine, PROMPT, Limits(12)).kv
    broken = replace(kv, values=torch.full_like(kv.values, torch.nan))
    sick = decode_engine.open(0, broken, 1, Limits(12), sampling)
    with pytest.raises(EngineFault, match="nan"):
        decode_engine.advance(sick)
    decode_engine.close(sick)
    assert answer(prefill_engine, decode_engine, PROMPT, Limits(12), sampling) == expected


@needs_cuda
@pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning")
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_draw_on_cuda_waits_for_nothing(sampling: Sampling) -> None:
    logits = torch.randn(300, device="cuda")
    sampler = Sampler(sampling)
    sampler.draw(logits, 0)
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        sampler.draw(logits, 1)
    finally:
        torch.cuda.set_sync_debug_mode(before)
