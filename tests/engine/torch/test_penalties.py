"""Penalties and bias change an answer as vLLM's formulas say; log-probabilities are the model's."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace

import pytest
import torch

from tests.engine.torch.answer import GREEDY, answer, prefill
from tests.engine.torch.tiny import Tiny, reference_logits
from tilert_engine.torch import Checkpoint, TorchDecode, TorchPrefill
from tilert_engine.torch.adjustments import Adjustments
from tilert_engine.torch.lanes import ChainOptions
from tilert_stream.errors import EngineFault
from tilert_stream.events import Limits, Sampling, TokenLogprob

PROMPT = [72, 101, 108, 108, 111, 44, 220]
LONGEST = 48
LIMITS = Limits(24)
REPEATING = replace(GREEDY, logit_bias=((40, 9.0), (41, 9.0), (72, 9.0)))
"""What it says often enough for penalties to matter."""
HEARD = frozenset(PROMPT)
SAMPLINGS = [
    pytest.param(REPEATING, id="bias"),
    pytest.param(replace(REPEATING, presence_penalty=2.0), id="presence"),
    pytest.param(replace(GREEDY, presence_penalty=-8.0), id="negative"),
    pytest.param(replace(REPEATING, frequency_penalty=1.1), id="frequency"),
    pytest.param(replace(REPEATING, repetition_penalty=1.8, prompt_tokens=HEARD), id="repetition"),
    pytest.param(replace(GREEDY, repetition_penalty=0.4, prompt_tokens=HEARD), id="repeating"),
    pytest.param(
        replace(
            REPEATING,
            presence_penalty=0.5,
            frequency_penalty=0.25,
            repetition_penalty=1.2,
            prompt_tokens=HEARD,
        ),
        id="all",
    ),
]


def numbers(tensor: torch.Tensor) -> list[float]:
    return [float(number) for number in tensor]


def adjusted(sampling: Sampling, logits: list[float], said: list[int]) -> list[float]:
    """vLLM's formulas, a token at a time."""
    out: list[float] = []
    for token, logit in enumerate(logits):
        logit += dict(sampling.logit_bias).get(token, 0.0)
        count = said.count(token)
        if count or token in sampling.prompt_tokens:
            repetition = sampling.repetition_penalty
            logit = logit / repetition if logit > 0 else logit * repetition
        out.append(
            logit
            - sampling.frequency_penalty * count
            - sampling.presence_penalty * (1 if count else 0)
        )
    return out


def reference(tiny: Tiny, sampling: Sampling, count: int) -> list[int]:
    said: list[int] = []
    for _ in range(count):
        logits = numbers(reference_logits(tiny, PROMPT + said))
        scores = adjusted(sampling, logits, said)
        said.append(max(range(len(scores)), key=scores.__getitem__))
    return said


@pytest.fixture(params=[False, True], ids=["host", "device"])
def engine(request: pytest.FixtureRequest, checkpoint: Checkpoint) -> TorchDecode:
    chains = ChainOptions(on_device=request.param, early=False, least_window=16)
    return TorchDecode(checkpoint, slots=1, max_seq_len=LONGEST, ar_steps=5, chains=chains)


@pytest.fixture
def prefiller(checkpoint: Checkpoint) -> TorchPrefill:
    return TorchPrefill(checkpoint, max_seq_len=LONGEST)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_an_answer_is_what_the_formulas_give(
    tiny: Tiny, prefiller: TorchPrefill, engine: TorchDecode, sampling: Sampling
) -> None:
    without = GREEDY if sampling is REPEATING or not sampling.logit_bias else REPEATING
    plain, _ = answer(prefiller, engine, PROMPT, LIMITS, without)
    got, _ = answer(prefiller, engine, PROMPT, LIMITS, sampling)
    assert got == reference(tiny, sampling, LIMITS.max_tokens)
    assert got != plain, "this test would not see a penalty that does nothing"
    assert answer(prefiller, engine, PROMPT, LIMITS, without)[0] == plain, "it has none again"


def test_a_place_counts_the_drafts_before_it() -> None:
    sampling = Sampling(
        presence_penalty=0.5,
        frequency_penalty=0.25,
        repetition_penalty=1.5,
        prompt_tokens=frozenset({1}),
        logit_bias=((3, 1.0),),
    )
    adjustments = Adjustments(6, torch.device("cpu"))
    adjustments.begin(sampling, first_token=2)
    adjustments.count(torch.tensor([4, 4]), torch.tensor([True, False]))
    logits = torch.randn(3, 6, generator=torch.Generator().manual_seed(1))
    got = adjustments.apply(logits, torch.tensor([5, 2]))
    for place, said in enumerate(([2, 4], [2, 4, 5], [2, 4, 5, 2])):
        expected = adjusted(sampling, numbers(logits[place]), said)
        assert numbers(got[place]) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    "sampling",
    [
        replace(GREEDY, logprobs=3),
        replace(GREEDY, logprobs=0),
        Sampling(seed=3, temperature=0.7, top_k=5, presence_penalty=1.0, logprobs=20),
    ],
    ids=["top-3", "drawn-only", "penalised"],
)
def test_logprobs_are_of_the_models_own_distribution(
    tiny: Tiny, prefiller: TorchPrefill, engine: TorchDecode, sampling: Sampling
) -> None:
    """Before penalties and temperature, the first token's from prefill; one an id."""
    output = prefill(prefiller, PROMPT, LIMITS, sampling)
    ids, told = list(output.first.ids), list(output.first.logprobs or ())
    sequence = engine.open(0, output.kv, ids[0], LIMITS, sampling)
    finished = None
    while finished is None:
        harvest = engine.advance(sequence)
        finished = harvest.finished
        ids += harvest.batch.ids
        told += harvest.batch.logprobs or ()
    engine.close(sequence)
    assert ids == answer(prefiller, engine, PROMPT, LIMITS, replace(sampling, logprobs=None))[0]
    assert [entry.token_id for entry in told] == ids
    for place, entry in enumerate(told):
        logits = reference_logits(tiny, PROMPT + ids[:place])
        right = logits.log_softmax(-1)
        assert entry.logprob == pytest.approx(float(right[ids[place]]), abs=1e-4)
        best = right.topk(sampling.logprobs or 1)
        assert len(entry.top) == sampling.logprobs
        assert [value for _, value in entry.top] == pytest.approx(
            numbers(best.values)[: len(entry.top)], abs=1e-4
        )
        assert sum(math.exp(value) for _, value in entry.top) <= 1 + 1e-6


def test_no_logprobs_where_none_are_asked_for(prefiller: TorchPrefill, engine: TorchDecode) -> None:
    output = prefill(prefiller, PROMPT, LIMITS)
    sequence = engine.open(0, output.kv, output.first.ids[0], LIMITS, GREEDY)
    assert output.first.logprobs is engine.advance(sequence).batch.logprobs is None
    engine.close(sequence)


def test_a_stop_cuts_logprobs_and_ids_alike(prefiller: TorchPrefill, engine: TorchDecode) -> None:
    ids, _ = answer(prefiller, engine, PROMPT, LIMITS)
    stop = next(token for token in ids[6:] if token not in ids[:6])
    limits = replace(LIMITS, stop_ids=frozenset({stop}))
    sampling = replace(GREEDY, logprobs=1)
    output = prefill(prefiller, PROMPT, limits, sampling)
    sequence = engine.open(0, output.kv, output.first.ids[0], limits, sampling)
    told: list[TokenLogprob] = []
    finished = None
    while finished is None:
        harvest = engine.advance(sequence)
        finished = harvest.finished
        told += harvest.batch.logprobs or ()
    engine.close(sequence)
    assert finished.stop_reason == stop
    assert [entry.token_id for entry in told] == ids[1 : ids.index(stop) + 1]


@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=1e308),
        Sampling(temperature=0, repetition_penalty=1e308, prompt_tokens=HEARD),
        Sampling(temperature=0, repetition_penalty=1e-308, prompt_tokens=HEARD),
        Sampling(temperature=0, presence_penalty=-1e308, frequency_penalty=1e308),
        Sampling(temperature=0, logit_bias=((5, -1e308), (6, 1e308))),
    ],
    ids=["temperature", "repetition", "divided", "answer", "bias"],
)
def test_numbers_beyond_the_tensors_fail_no_more_than_the_request(
    checkpoint: Checkpoint, sampling: Sampling, *, on_device: bool
) -> None:
    prefiller = TorchPrefill(checkpoint, max_seq_len=LONGEST)
    chains = ChainOptions(on_device=on_device, early=False, least_window=16)
    engine = TorchDecode(checkpoint, slots=1, max_seq_len=LONGEST, ar_steps=3, chains=chains)
    with suppress(EngineFault):
        answer(prefiller, engine, PROMPT, LIMITS, sampling)
    ids, finished = answer(prefiller, engine, PROMPT, LIMITS)
    assert (len(ids), finished.reason) == (24, "length")
