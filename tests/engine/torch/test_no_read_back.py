"""Nothing between a token and the next is read back from the device.

A read would cost a device synchronisation a token. The meta device shows one anywhere: its tensors
have no values, so reading one raises.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tilert_engine.torch import Checkpoint
from tilert_engine.torch.llama import Llama
from tilert_engine.torch.sampler import Sampler
from tilert_engine.torch.weights import LayerWeights
from tilert_stream.events import Sampling

META = torch.device("meta")
SAMPLINGS = [
    pytest.param(Sampling(temperature=0), id="greedy"),
    pytest.param(Sampling(seed=1), id="plain"),
    pytest.param(Sampling(seed=1, min_p=0.1), id="min_p"),
    pytest.param(Sampling(seed=1, top_k=5), id="top_k"),
    pytest.param(Sampling(seed=1, top_p=0.9), id="top_p"),
    pytest.param(Sampling(seed=1, top_k=5, top_p=0.9, min_p=0.1), id="all"),
]


def on_meta(layer: LayerWeights) -> LayerWeights:
    return LayerWeights(
        attention_norm=layer.attention_norm.to(META),
        qkv=layer.qkv.to(META),
        qkv_bias=None,
        output=layer.output.to(META),
        mlp_norm=layer.mlp_norm.to(META),
        gate_up=layer.gate_up.to(META),
        down=layer.down.to(META),
    )


def test_the_meta_device_shows_a_read() -> None:
    with pytest.raises(RuntimeError, match="meta"):
        int(torch.empty((), device=META))


@pytest.mark.parametrize("masked", [(), (1, 2)], ids=["free", "masked"])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_draw_reads_nothing_back(sampling: Sampling, masked: tuple[int, ...]) -> None:
    logits = torch.empty(64, device=META)
    drawn, peak = Sampler(sampling).draw(logits, 0, masked=masked)
    assert (drawn.device, drawn.shape, drawn.dtype) == (META, (), torch.int64)
    assert (peak.device, peak.shape) == (META, ())


@torch.inference_mode()
def test_a_step_reads_nothing_back(checkpoint: Checkpoint) -> None:
    weights = checkpoint.weights
    moved = replace(
        weights,
        embedding=weights.embedding.to(META),
        layers=tuple(on_meta(layer) for layer in weights.layers),
        norm=weights.norm.to(META),
        head=weights.head.to(META),
    )
    llama = Llama(replace(checkpoint, weights=moved), 16)
    buffer = llama.buffer(positions=16)
    for start, tokens in [(0, 5), (5, 1), (6, 1)]:
        ids = torch.empty(tokens, dtype=torch.int64, device=META)
        hidden = llama.hidden(ids, start, buffer)
        assert hidden.shape == (tokens, checkpoint.config.hidden_size)
    assert llama.logits(hidden).device == META
