"""Logits that are not finite fail their request alone: never the engine, whatever the sampling."""

from __future__ import annotations

import math

import pytest
import torch
from tokenizers import Tokenizer, models

from tilert_engine.models.config import ModelConfig
from tilert_engine.torch import Checkpoint, TorchDecode, TorchPrefill
from tilert_engine.torch.sampler import Sampler
from tilert_engine.torch.weights import LayerWeights, Weights
from tilert_stream.errors import EngineFault
from tilert_stream.events import Limits, Sampling

VOCAB, HIDDEN, POISON, SOUND = 12, 8, 11, 3
PROMPT = (1, 2, 5)
SAMPLINGS = [
    pytest.param(Sampling(temperature=0), id="greedy"),
    pytest.param(Sampling(seed=1), id="plain"),
    pytest.param(Sampling(seed=1, min_p=0.1), id="min_p"),
    pytest.param(Sampling(seed=1, top_k=5), id="top_k"),
    pytest.param(Sampling(seed=1, top_p=0.9), id="top_p"),
    pytest.param(Sampling(seed=1, top_k=5, top_p=0.9, min_p=0.1), id="all"),
]


@pytest.fixture(params=[math.nan, math.inf], ids=["nan", "inf"])
def poisoned(request: pytest.FixtureRequest) -> Checkpoint:
    """A sound model, but for the embedding of one token."""
    generator = torch.Generator().manual_seed(0)

    def matrix(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    embedding = matrix(VOCAB, HIDDEN)
    embedding[POISON] = request.param
    layer = LayerWeights(
        attention_norm=torch.ones(HIDDEN),
        qkv=matrix(16, HIDDEN),
        qkv_bias=None,
        output=matrix(HIDDEN, HIDDEN),
        mlp_norm=torch.ones(HIDDEN),
        gate_up=matrix(20, HIDDEN),
        down=matrix(HIDDEN, 10),
    )
    return Checkpoint(
        name="poisoned",
        config=ModelConfig(
            vocab_size=VOCAB,
            hidden_size=HIDDEN,
            intermediate_size=10,
            layers=1,
            heads=2,
            kv_heads=1,
            head_dim=4,
            rms_norm_eps=1e-5,
            rope_theta=10000.0,
            max_position_embeddings=32,
            tied_head=False,
        ),
        weights=Weights(embedding, (layer,), torch.ones(HIDDEN), matrix(VOCAB, HIDDEN)),
        tokenizer=Tokenizer(models.BPE()),
        eos_ids=frozenset(),
    )


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_draw_from_logits_that_are_not_finite_is_an_id_and_says_so(
    sampling: Sampling, bad: float
) -> None:
    for index in range(20):
        drawn, peak = Sampler(sampling).draw(torch.full((VOCAB,), bad), index)
        assert 0 <= int(drawn) < VOCAB
        assert not math.isfinite(float(peak))


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_one_nan_among_the_logits_is_seen(sampling: Sampling) -> None:
    logits = torch.arange(float(VOCAB))
    logits[4] = math.nan
    drawn, peak = Sampler(sampling).draw(logits, 0)
    assert 0 <= int(drawn) < VOCAB
    assert math.isnan(float(peak))


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_poisoned_prompt_fails_its_run_alone(poisoned: Checkpoint, sampling: Sampling) -> None:
    engine = TorchPrefill(poisoned, max_seq_len=16)
    run = engine.open((1, POISON), Limits(4), sampling)
    with pytest.raises(EngineFault, match="not finite"):
        engine.advance(run)
    engine.close(run)
    assert engine.advance(engine.open(PROMPT, Limits(4), sampling)) is not None


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_poisoned_token_fails_its_sequence_alone(
    poisoned: Checkpoint, sampling: Sampling
) -> None:
    limits = Limits(6)
    prefill = TorchPrefill(poisoned, max_seq_len=16)
    output = prefill.advance(prefill.open(PROMPT, limits, sampling))
    assert output is not None
    engine = TorchDecode(poisoned, slots=2, max_seq_len=16, ar_steps=4)
    # Greedy and never the poisoned id: what a fresh engine answers.
    calm = Sampling(temperature=0)
    masked = Limits(6, min_tokens=6, eos_ids=frozenset({POISON}))
    undisturbed = TorchDecode(poisoned, slots=1, max_seq_len=16, ar_steps=5)
    expected = undisturbed.advance(undisturbed.open(0, output.kv, SOUND, masked, calm))

    sick = engine.open(0, output.kv, POISON, limits, sampling)
    neighbour = engine.open(1, output.kv, SOUND, masked, calm)
    with pytest.raises(EngineFault, match="not all finite"):
        engine.advance(sick)
    engine.close(sick)
    heir = engine.open(0, output.kv, SOUND, masked, calm)
    for sequence in (neighbour, heir):
        harvests = [engine.advance(sequence), engine.advance(sequence)]
        assert sum((h.batch.ids for h in harvests), ()) == expected.batch.ids
        assert harvests[-1].finished == expected.finished
