"""How a request's sampling reaches the device, and how little of it stays there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.engine.tilert.driving import FAMILIES, GREEDY, Family, answer, begin, engine_on
from tilert_engine.tilert.decode import TileRTDecode
from tilert_engine.tilert.sampling import DeviceSampling, device_sampling
from tilert_stream.errors import EngineFault
from tilert_stream.events import Limits, Sampling
from tilert_stream.testing.tilert_device import FakeStepLayer
from tilert_stream.testing.tilert_fake import TOKEN_OUT, FakeGenerator, FakeModel

MODEL = FakeModel(token=lambda index: 100 + index, drawn=lambda index: 500 + index)
GREEDILY = DeviceSampling(temperature=1.0, top_p=1.0, top_k=1, use_topp=False)
families = pytest.mark.parametrize("family", FAMILIES, ids=str)


@pytest.mark.parametrize(
    ("sampling", "told"),
    [
        (Sampling(temperature=0), GREEDILY),
        (Sampling(temperature=9.9e-6, top_p=0.5, top_k=7, seed=1), GREEDILY),
        (Sampling(temperature=1e-5), DeviceSampling(1e-5, 1.0, 256, use_topp=True)),
        (Sampling(), DeviceSampling(1.0, 1.0, 256, use_topp=True)),
        (Sampling(0.7, 0.9, 40), DeviceSampling(0.7, 0.9, 40, use_topp=True)),
        (Sampling(top_k=100_000), DeviceSampling(1.0, 1.0, 256, use_topp=True)),
        (Sampling(top_k=-1), DeviceSampling(1.0, 1.0, 256, use_topp=True)),
    ],
)
def test_what_the_device_is_told(sampling: Sampling, told: DeviceSampling) -> None:
    assert device_sampling(sampling) == told


def test_pd_20_min_p_is_refused_not_ignored() -> None:
    engine, fake = engine_on(MODEL, FAMILIES[0])
    assert engine.capabilities == {"seed"}
    with pytest.raises(EngineFault, match=r"min_p is 0\.1; TileRT has no min_p") as caught:
        begin(engine, fake, Limits(3), Sampling(min_p=0.1))
    assert caught.value.param == "min_p"
    assert fake.device.sequence is None
    assert answer(engine, fake, Limits(3)).ids == [101, 102]


@families
def test_the_device_is_told_only_what_changes(family: Family) -> None:
    """A change has the CUDA graphs recorded anew, before the next token is out."""
    engine, fake = engine_on(MODEL, family)
    warm = Sampling(0.7, 0.9, 40)
    for sampling in (GREEDY, Sampling(temperature=0, top_k=5), warm, warm, GREEDY):
        answer(engine, fake, Limits(3), sampling)
    assert fake.samplings == [GREEDILY, (0.7, 0.9, 40, True), GREEDILY]


@families
def test_a_seed_does_not_outlive_its_request(family: Family) -> None:
    engine, fake = engine_on(MODEL, family)
    for seed in (None, 7, 7, None, None):
        answer(engine, fake, Limits(3), Sampling(seed=seed))
    first, second, fresh = fake.device.seeds
    assert (first, second) == (7, 7)
    assert 0 <= fresh < 2**31
    answer(engine, fake, Limits(3), replace(GREEDY, seed=8))
    assert len(fake.device.seeds) == 3, "greedy decoding draws nothing"


class UnseededLayer:
    """A layer of a version without ``set_sampling_seed``."""

    def __init__(self, layer: FakeStepLayer) -> None:
        self.max_seq_len = layer.max_seq_len
        self.forward = layer.forward
        self.reset_sequence = layer.reset_sequence


def test_a_seed_that_cannot_be_set_is_refused_and_the_device_reset() -> None:
    fake = FakeGenerator(MODEL, with_mtp=False, chains=False)
    assert isinstance(fake.decode_layer, FakeStepLayer)
    setattr(fake, "decode_layer", UnseededLayer(fake.decode_layer))  # noqa: B010 - of another type
    engine = TileRTDecode(fake, model=fake.model, with_mtp=False, token_out=TOKEN_OUT)
    assert engine.capabilities == frozenset()
    with pytest.raises(EngineFault, match="seed is 7; this version of TileRT takes none") as caught:
        begin(engine, fake, Limits(3), Sampling(seed=7))
    assert caught.value.param == "seed"
    assert fake.device.sequence is None
    assert answer(engine, fake, Limits(3), Sampling()).ids == [501, 502]
