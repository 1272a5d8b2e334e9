"""top_p on CPU looks at a few tokens first: never at the price of another draw."""

from __future__ import annotations

import pytest
import torch

from tilert_engine.torch import sampler
from tilert_engine.torch.sampler import Sampler
from tilert_stream.events import Sampling

VOCAB = 400


def draws(sampling: Sampling, spread: float) -> list[int]:
    generator = torch.Generator().manual_seed(7)
    logits = torch.randn(60, VOCAB, generator=generator) * spread
    return [int(Sampler(sampling).draw(row, index)[0]) for index, row in enumerate(logits)]


# Peaked: the few suffice in nearly every row. Flat: in none. Between: top_p decides.
@pytest.mark.parametrize("spread", [8.0, 0.1, 2.0], ids=["peaked", "flat", "between"])
@pytest.mark.parametrize("top_p", [0.0, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("min_p", [0.0, 0.01])
def test_a_few_tokens_first_or_all_at_once_is_the_same_draw(
    monkeypatch: pytest.MonkeyPatch, spread: float, top_p: float, min_p: float
) -> None:
    sampling = Sampling(seed=5, top_p=top_p, min_p=min_p)
    monkeypatch.setattr(sampler, "_FEW", VOCAB)
    expected = draws(sampling, spread)
    monkeypatch.setattr(sampler, "_FEW", 20)
    assert draws(sampling, spread) == expected


@pytest.mark.parametrize(("spread", "sorts"), [(8.0, 0), (0.1, 60)], ids=["peaked", "flat"])
def test_the_vocabulary_is_sorted_only_where_the_few_do_not_suffice(
    monkeypatch: pytest.MonkeyPatch, spread: float, sorts: int
) -> None:
    counted: list[int] = []
    sort = torch.Tensor.sort

    def counting(
        self: torch.Tensor, *, descending: bool, stable: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        counted.append(self.shape[0])
        values, ids = sort(self, descending=descending, stable=stable)
        return values, ids

    monkeypatch.setattr(torch.Tensor, "sort", counting)
    monkeypatch.setattr(sampler, "_FEW", 40)
    draws(Sampling(seed=5, top_p=0.9), spread)
    assert counted == [VOCAB] * sorts
