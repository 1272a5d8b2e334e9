"""The forward pass against a float64 reference, and what the cache's formats cost."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.engine.glm.asking import Answer
from tests.engine.glm.reference import Reference
from tilert_engine.glm import GLMCheckpoint
from tilert_engine.glm.memory import Memory, PagedMemory
from tilert_engine.glm.network import Network
from tilert_engine.layouts.mla_nsa_model import CacheDtype
from tilert_engine.models.tiny_glm5 import TINY_GLM5

DOUBLE = torch.float64


@pytest.fixture(scope="module")
def reference() -> Reference:
    return Reference(TINY_GLM5)


@pytest.fixture(scope="module")
def exact() -> GLMCheckpoint:
    return GLMCheckpoint.load(TINY_GLM5, dtype=DOUBLE, device=torch.device("cpu"))


@pytest.mark.parametrize("chunk", [1, 4, 50, 500])
def test_the_absorbed_form_is_the_model(
    exact: GLMCheckpoint, reference: Reference, answers: list[Answer], chunk: int
) -> None:
    ids = answers[-1].prompt
    assert len(ids) > 2 * exact.config.index_topk
    network = Network(exact.config, exact.weights, len(ids))
    memory = Memory(exact.config, exact.weights, len(ids))
    hidden = torch.cat(
        [
            network.hidden(torch.tensor(ids[start : start + chunk]), start, memory)
            for start in range(0, len(ids), chunk)
        ]
    )
    # Logits leave as float32; the indexer ranks by keys that were rotated in it.
    torch.testing.assert_close(
        network.logits(hidden).double(), reference.logits(ids), rtol=0, atol=2e-5
    )
    following = torch.tensor([*ids[1:], 7])
    state = network.draft(hidden, following, 0, memory)
    torch.testing.assert_close(
        network.draft_logits(state).double(), reference.drafted(ids, 7), rtol=0, atol=2e-5
    )


def test_what_the_indexer_leaves_out_matters(
    exact: GLMCheckpoint, reference: Reference, answers: list[Answer]
) -> None:
    ids = answers[-1].prompt
    config = replace(exact.config, index_topk=len(ids))
    network = Network(config, exact.weights, len(ids))
    memory = Memory(config, exact.weights, len(ids))
    dense = network.logits(network.hidden(torch.tensor(ids), 0, memory))
    assert (dense - reference.logits(ids)).abs().max() > 1e-2


@pytest.mark.parametrize(("dtype", "bound"), [("bf16", 0.004), ("fp8_ds_mla", 0.015)])
def test_the_cache_costs_no_more_than_its_bound(
    checkpoint: GLMCheckpoint,
    reference: Reference,
    answers: list[Answer],
    dtype: CacheDtype,
    bound: float,
) -> None:
    """The root of the mean squared difference of the logits, by their own standard deviation."""
    for answer in answers:
        ids = [*answer.prompt, *answer.ids]
        network = Network(checkpoint.config, checkpoint.weights, len(ids))
        memory = PagedMemory(checkpoint.config, checkpoint.weights, len(ids), dtype)
        got = network.logits(network.hidden(torch.tensor(ids), 0, memory)).double()
        want = reference.logits(ids)
        assert float((got - want).square().mean().sqrt() / want.std()) < bound
