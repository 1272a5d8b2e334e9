"""A KV cache that has landed, on its way into TileRT."""

from __future__ import annotations

import pytest

from tests.engine.tilert.driving import FAMILIES, GREEDY, Family, engine_on
from tilert_engine.layouts.landed import LandedKV, LandingDecode
from tilert_engine.layouts.mla_nsa import MlaNsaLayout
from tilert_engine.layouts.mla_nsa_model import MlaNsaModel
from tilert_stream.events import Limits
from tilert_stream.testing.tilert_fake import FakeModel

MODEL = FakeModel(token=lambda index: 100 + index, last_prompt_token=9)


@pytest.mark.parametrize("family", FAMILIES, ids=str)
@pytest.mark.parametrize("last_token", [9, None])
def test_a_landed_cache_is_injected_with_the_prompts_last_token(
    family: Family, last_token: int | None
) -> None:
    engine, fake = engine_on(MODEL, family)
    model = MlaNsaModel(fake.model.name, fake.model.main_layers, 1)
    layout = MlaNsaLayout(model=model, dtype="fp8_ds_mla", max_seq_len=128)
    decode = LandingDecode(engine, layout)
    region = memoryview(bytearray(layout.region_bytes))
    landed = LandedKV(region, 70, last_token=last_token)
    sequence = decode.open(0, landed, 100, Limits(3), GREEDY)
    opening = family.with_mtp and last_token is not None
    assert fake.device.forwards == opening
    assert decode.advance(sequence).batch.ids[0] == 101
    decode.close(sequence)
