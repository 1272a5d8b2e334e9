"""KV caches that cannot be decoded, between nodes: refused, and the next request is served."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest

from tests.pd.cluster import Cluster
from tilert_engine.layouts.mla_nsa import MlaNsaLayout
from tilert_stream.config import RouterConfig, ServeConfig
from tilert_stream.serve import router
from tilert_stream.serve.front import Front, load_front
from tilert_stream.serve.models import Model, load_model

CONFIG = ServeConfig(model="tiny-glm5", max_seq_len=256, threads=1)
ASKED = [{"role": "user", "content": "Hello"}]
HELLO = "Hello! Ask me what a word means, and I will explain it."
FP8_NAN = 0x7F


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedOnce(MlaNsaLayout):
    """Packs as it should, but for the first cache: its first latent value is not a number."""

    damages: Iterator[int]

    def pack(self, kv: object, staging: memoryview, rank: int = 0) -> int:
        tokens = MlaNsaLayout.pack(self, kv, staging, rank)
        if next(self.damages, None) is not None:
            staging[0] = FP8_NAN
        return tokens


@pytest.fixture(scope="module")
def models() -> tuple[Model, Model]:
    return load_model(CONFIG), load_model(CONFIG, slots=1)


@pytest.fixture(autouse=True)
def _front(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction] -- used by pytest
    front = load_front(RouterConfig(model="tiny-glm5"))

    def loaded(_config: RouterConfig) -> Front:
        return front

    monkeypatch.setattr(router, "load_front", loaded)


def with_layout(model: Model, layout: MlaNsaLayout) -> SimpleNamespace:
    return SimpleNamespace(
        front=model.front, prefill=model.prefill, decode=model.decode, layout=layout
    )


def layout_of(model: Model) -> MlaNsaLayout:
    layout = model.layout
    assert isinstance(layout, MlaNsaLayout)
    return layout


@pytest.mark.parametrize("checked", [True, False])
async def test_nan_fails_its_request_alone(models: tuple[Model, Model], checked: bool) -> None:
    sound = layout_of(models[0])
    damaged = DamagedOnce(
        model=sound.model, dtype=sound.dtype, max_seq_len=sound.max_seq_len, damages=iter([1])
    )
    cluster = Cluster(
        prefill_model=with_layout(models[0], damaged),
        decode_models=[with_layout(models[1], replace(sound, refuse_nan=checked))],
        transport="memory",
    )
    async with cluster.running():
        answer = await cluster.ask(messages=ASKED, max_tokens=60, temperature=0)
        assert answer.error is not None
        assert not answer.whole
        said = "plane kv, layer 0, token 0" if checked else "not finite"
        assert said in answer.message
        await cluster.idle()
        answer = await cluster.ask(messages=ASKED, max_tokens=60, temperature=0)
        assert (answer.text, answer.whole) == (HELLO, True)
        await cluster.idle()


async def test_another_dtype_is_refused_with_both_values_before_prefill(
    models: tuple[Model, Model],
) -> None:
    other = replace(layout_of(models[0]), dtype="bf16")
    cluster = Cluster(
        prefill_model=with_layout(models[0], other), decode_models=[models[1]], transport="memory"
    )
    async with cluster.running():
        answer = await cluster.ask(messages=ASKED, max_tokens=60)
        assert answer.status == 503
        assert "bf16" in answer.message
        assert "fp8_ds_mla" in answer.message
        await cluster.idle()


async def test_a_prompt_past_the_window_is_refused_and_the_next_is_served(
    models: tuple[Model, Model],
) -> None:
    cluster = Cluster(prefill_model=models[0], decode_models=[models[1]], transport="memory")
    async with cluster.running():
        long = [{"role": "user", "content": "violin " * 400}]
        answer = await cluster.ask(messages=long, max_tokens=60)
        assert answer.status == 400
        assert answer.error == "context_length_exceeded"
        assert "256" in answer.message
        await cluster.idle()
        answer = await cluster.ask(messages=ASKED, max_tokens=60, temperature=0)
        assert (answer.text, answer.whole) == (HELLO, True)
