"""Drafts: they are good, and whatever they are, what is drawn is the model's."""

from __future__ import annotations

import pytest
import torch

from tests.engine.glm.asking import Answer, decode, prefill
from tests.engine.glm.reference import Reference
from tilert_engine.glm import GLMCheckpoint, GLMDecode, GLMPrefill
from tilert_engine.models.tiny_glm5 import TINY_GLM5
from tilert_stream.events import Limits, Sampling

DRAWS = 250
TEMPERATURE = 2.0
BINS = 6


@pytest.fixture(scope="module")
def reference() -> Reference:
    return Reference(TINY_GLM5)


def drafting(checkpoint: GLMCheckpoint, drafts: int) -> GLMDecode:
    return GLMDecode(checkpoint, slots=1, max_seq_len=512, drafts=drafts)


def chi_square(drawn: list[int], shares: torch.Tensor) -> float:
    """Over the likeliest tokens, and all others together."""
    likely = shares.topk(BINS - 1)
    expected = [*map(float, likely.values), 1 - float(likely.values.sum())]
    observed = [drawn.count(int(token)) for token in likely.indices]
    observed.append(len(drawn) - sum(observed))
    square = 0.0
    for seen, share in zip(observed, expected, strict=True):
        wanted = share * len(drawn)
        square += (seen - wanted) * (seen - wanted) / wanted
    return square


@pytest.mark.parametrize("rank", [0, 2, 2000])
def test_what_is_verified_has_the_models_distribution(
    checkpoint: GLMCheckpoint,
    prefiller: GLMPrefill,
    reference: Reference,
    answers: list[Answer],
    rank: int,
) -> None:
    """Whether the draft is the likeliest token, the third, or one that is hardly ever right."""
    prompt, first = answers[0].prompt, answers[0].ids[0]
    limits = Limits(3)
    shares = (reference.logits([*prompt, first])[-1] / TEMPERATURE).softmax(-1)
    guess = int(shares.argsort(descending=True)[rank])
    after = (reference.logits([*prompt, first, guess])[-1] / TEMPERATURE).softmax(-1)
    kv = prefill(prefiller, prompt, limits).kv
    decoder = drafting(checkpoint, 1)
    drawn: list[int] = []
    behind: list[int] = []
    for seed in range(DRAWS):
        sequence = decoder.open(0, kv, first, limits, Sampling(TEMPERATURE, seed=seed))
        sequence.drafts = [guess]
        ids = decoder.advance(sequence).batch.ids
        decoder.close(sequence)
        drawn.append(ids[0])
        behind += ids[1:]
    # 0.999 quantile of chi-square with 5 degrees of freedom
    assert chi_square(drawn, shares) < 20.5
    assert len(behind) == drawn.count(guess)
    if rank == 0:
        assert len(behind) > 50
        assert chi_square(behind, after) < 20.5


@pytest.mark.parametrize(("drafts", "least"), [(1, 1.7), (3, 2.4)])
def test_the_draft_layer_is_accepted_well_above_once_a_step(
    checkpoint: GLMCheckpoint,
    prefiller: GLMPrefill,
    answers: list[Answer],
    drafts: int,
    least: float,
) -> None:
    decoder = drafting(checkpoint, drafts)
    tokens = steps = 0
    for answer in answers:
        limits = Limits(len(answer.ids))
        kv = prefill(prefiller, answer.prompt, limits).kv
        sequence = decoder.open(0, kv, answer.ids[0], limits, Sampling(temperature=0))
        while decoder.advance(sequence).finished is None:
            pass
        decoder.close(sequence)
        ledger = sequence.ledger
        assert (ledger.overrun, ledger.consumed) == (0, ledger.forwards)
        tokens += ledger.accepted
        steps += ledger.forwards
    assert tokens / steps > least


def test_stop_tokens_inside_a_step_end_it(
    checkpoint: GLMCheckpoint, prefiller: GLMPrefill, answers: list[Answer]
) -> None:
    answer = next(answer for answer in answers if answer.cache)
    decoder = drafting(checkpoint, 3)
    kv = prefill(prefiller, answer.prompt, Limits(40)).kv
    for place in range(1, 12):
        stop = answer.ids[place]
        expected = answer.ids.index(stop, 1) + 1
        limits = Limits(40, stop_ids=frozenset({stop}))
        ids, finished = decode(decoder, kv, answer.ids[0], limits)
        assert ids == answer.ids[:expected]
        assert (finished.reason, finished.stop_reason) == ("stop", stop)


@pytest.mark.parametrize("tokens", range(2, 12))
def test_the_budget_is_met_exactly(
    checkpoint: GLMCheckpoint, prefiller: GLMPrefill, answers: list[Answer], tokens: int
) -> None:
    answer = next(answer for answer in answers if answer.cache)
    kv = prefill(prefiller, answer.prompt, Limits(tokens)).kv
    ids, finished = decode(drafting(checkpoint, 4), kv, answer.ids[0], Limits(tokens))
    assert ids == answer.ids[:tokens]
    assert finished.reason == "length"


def test_no_stop_token_is_drawn_before_min_tokens(
    checkpoint: GLMCheckpoint, prefiller: GLMPrefill, answers: list[Answer]
) -> None:
    answer = next(answer for answer in answers if answer.cache)
    stops = frozenset(answer.ids[3:6])
    limits = Limits(30, min_tokens=20, stop_ids=stops)
    kv = prefill(prefiller, answer.prompt, limits).kv
    told = [decode(drafting(checkpoint, drafts), kv, answer.ids[0], limits)[0] for drafts in (0, 3)]
    assert told[0] == told[1]
    assert not stops & set(told[0][1:19])


def test_the_window_can_be_filled_to_its_end(
    checkpoint: GLMCheckpoint, prefiller: GLMPrefill, answers: list[Answer]
) -> None:
    answer = next(answer for answer in answers if answer.cache)
    window = len(answer.prompt) + 30
    decoder = GLMDecode(checkpoint, slots=1, max_seq_len=window, drafts=5, ar_steps=8)
    kv = prefill(prefiller, answer.prompt, Limits(30)).kv
    ids, _ = decode(decoder, kv, answer.ids[0], Limits(30))
    assert ids == answer.ids[:30]
