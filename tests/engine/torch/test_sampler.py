"""What may be drawn, how often, and that a draw depends on nothing but seed and index."""

from __future__ import annotations

import math

import pytest
import torch

from tilert_engine.torch.sampler import Sampler, uniform
from tilert_stream.events import Sampling

LOGITS = [2.0, 1.0, 0.5, 0.0, -1.0, -3.0]


def draws(sampling: Sampling, count: int, logits: list[float] = LOGITS) -> list[int]:
    sampler = Sampler(sampling)
    return [int(sampler.draw(torch.tensor(logits), index)[0]) for index in range(count)]


def softmax(logits: list[float], temperature: float = 1.0) -> list[float]:
    weights = [math.exp(logit / temperature) for logit in logits]
    return [weight / sum(weights) for weight in weights]


def kept(shares: list[float], ids: set[int]) -> list[float]:
    total = sum(shares[i] for i in ids)
    return [share / total if i in ids else 0.0 for i, share in enumerate(shares)]


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(seed=1), softmax(LOGITS)),
        (Sampling(seed=2, temperature=0.5), softmax(LOGITS, 0.5)),
        (Sampling(seed=3, temperature=3.0), softmax(LOGITS, 3.0)),
        (Sampling(seed=4, top_k=2), kept(softmax(LOGITS), {0, 1})),
        (Sampling(seed=5, top_k=99), softmax(LOGITS)),
        # shares 0.56 0.21 0.13 0.08 0.03 0.00: 0.77 < 0.8, so the third is still kept
        (Sampling(seed=6, top_p=0.8), kept(softmax(LOGITS), {0, 1, 2})),
        (Sampling(seed=7, top_p=0.5), kept(softmax(LOGITS), {0})),
        # min_p is relative to the likeliest: exp(-1.5) = 0.22 > 0.2 > exp(-2) = 0.14
        (Sampling(seed=8, min_p=0.2), kept(softmax(LOGITS), {0, 1, 2})),
        # after the temperature: at 0.5 the ratios are squared
        (Sampling(seed=9, min_p=0.1, temperature=0.5), kept(softmax(LOGITS, 0.5), {0, 1})),
        # top_p is taken of what top_k left: 0.62, 0.23, 0.14 of three, 0.73 of two
        (Sampling(seed=10, top_k=3, top_p=0.7), kept(softmax(LOGITS), {0, 1})),
        (Sampling(seed=11, top_k=2, top_p=0.7), kept(softmax(LOGITS), {0})),
        (Sampling(seed=12, top_p=0.9, min_p=0.3), kept(softmax(LOGITS), {0, 1})),
    ],
    ids=str,
)
def test_frequencies_follow_the_distribution(sampling: Sampling, expected: list[float]) -> None:
    count = 4000
    drawn = draws(sampling, count)
    observed = [drawn.count(token) for token in range(len(LOGITS))]
    for seen, share in zip(observed, expected, strict=True):
        if share == 0:
            assert seen == 0
    chi_square = sum(
        (seen - share * count) ** 2 / (share * count)
        for seen, share in zip(observed, expected, strict=True)
        if share > 0
    )
    # 0.999 quantiles of chi-square with n - 1 degrees of freedom
    limit = [0.001, 10.83, 13.82, 16.27, 18.47, 20.52][sum(share > 0 for share in expected) - 1]
    assert chi_square < limit


def test_uniform_is_a_function_of_seed_and_index() -> None:
    points = [uniform(7, index) for index in range(2000)]
    assert points == [uniform(7, index) for index in range(2000)]
    assert len(set(points)) == 2000
    assert all(0 <= point < 1 for point in points)
    counts = [sum(k / 10 <= point < (k + 1) / 10 for point in points) for k in range(10)]
    assert sum((count - 200) ** 2 / 200 for count in counts) < 27.88
    assert points != [uniform(8, index) for index in range(2000)]


@pytest.mark.parametrize("seed", [0, -1, 2**63 - 1, 10**40])
def test_any_integer_is_a_seed(seed: int) -> None:
    assert draws(Sampling(seed=seed), 50) == draws(Sampling(seed=seed), 50)


def test_without_a_seed_two_requests_differ() -> None:
    logits = [0.0] * 64
    assert draws(Sampling(), 40, logits) != draws(Sampling(), 40, logits)


@pytest.mark.parametrize("temperature", [0, 1e-6])
def test_cold_is_greedy(temperature: float) -> None:
    assert draws(Sampling(temperature=temperature, top_k=3, min_p=0.5), 20) == [0] * 20


def test_a_tiny_temperature_does_not_overflow() -> None:
    logits = [3e38, 1.0, -3e38]
    assert draws(Sampling(temperature=2e-5, seed=1), 20, logits) == [0] * 20


@pytest.mark.parametrize(
    "sampling", [Sampling(temperature=0), Sampling(seed=1), Sampling(seed=1, top_k=2, top_p=0.5)]
)
def test_masked_ids_are_never_drawn(sampling: Sampling) -> None:
    sampler = Sampler(sampling)
    for index in range(100):
        drawn, peak = sampler.draw(torch.tensor(LOGITS), index, masked={0, 2, 999, -1})
        assert int(drawn) not in {0, 2}
        assert float(peak) == 1.0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_bad_logit_shows_in_the_peak(temperature: float, bad: float) -> None:
    sampler = Sampler(Sampling(temperature=temperature, seed=1, top_p=0.9))
    _, peak = sampler.draw(torch.tensor([0.0, bad, 1.0]), 0)
    assert not math.isfinite(float(peak))


def test_a_mask_over_everything_shows_in_the_peak() -> None:
    _, peak = Sampler(Sampling(seed=1)).draw(torch.tensor(LOGITS), 0, masked=range(6))
    assert float(peak) == -math.inf


@pytest.mark.parametrize("point", [0.0, 1 - 2.0**-53])
def test_the_ends_of_the_interval_draw_tokens_of_some_weight(
    point: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fixed(_seed: int, _index: int) -> float:
        return point

    monkeypatch.setattr("tilert_engine.torch.sampler.uniform", fixed)
    logits = [-math.inf, 0.0, -1.0, -math.inf]
    drawn = draws(Sampling(seed=1), 1, logits)
    assert drawn == ([1] if point == 0 else [2])
    assert draws(Sampling(seed=1, top_p=0.0), 1, logits) == [1]
