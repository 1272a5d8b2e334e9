"""``decode --engine tilert``: what it takes, what it refuses, and what it serves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import tokenizers

from tests.engine.tilert.package import forget, install
from tilert_engine.layouts.mla_nsa import MlaNsaLayout
from tilert_engine.tilert import TileRTDecode
from tilert_stream.config import DecodeConfig, PrefillConfig, ServeConfig
from tilert_stream.errors import ConfigError
from tilert_stream.serve.all_in_one import build_app
from tilert_stream.serve.decode import build_decode
from tilert_stream.serve.models import Model, load_model

CONFIG = DecodeConfig(engine="tilert", model="glm5")


@pytest.fixture(autouse=True)
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """TileRT in place, and a folder of weights with a tokenizer."""
    for name in ("TILERT_PD_NO_MTP", "GLM5_AR_N"):
        monkeypatch.delenv(name, raising=False)
    folder = install(tmp_path, monkeypatch)
    words = {"<|user|>": 7, "<|endoftext|>": 8, "x": 0}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, "x"))
    tokenizer.save(str(folder / "tokenizer.json"))
    yield folder
    forget(monkeypatch)


def load(config: DecodeConfig, weights: Path | None) -> Model:
    return load_model(
        config,
        slots=config.slots,
        ar_steps=config.ar_steps,
        senders=config.senders,
        weights=weights,
        prefills=False,
    )


def decode_of(model: Model) -> TileRTDecode:
    engine = model.decode
    assert isinstance(engine, TileRTDecode)
    return engine


def test_glm5_with_its_defaults(weights: Path) -> None:
    model = load(CONFIG, weights)
    engine, layout = decode_of(model), model.layout
    assert (engine.slots, engine.max_seq_len) == (1, 4096)
    assert engine.stop_ids == model.front.card.eos_ids == {7, 8}
    assert model.front.card.names == ("glm5",)
    assert isinstance(layout, MlaNsaLayout)
    assert (layout.model.layers, layout.version, layout.max_seq_len) == (79, 10, 4096)
    app, port = build_decode(CONFIG, model)
    assert app.node.admission.statistics().slots == 1
    assert port.port == 5556


@pytest.mark.parametrize("name", ["deepseek_v3_2", "deepseek-v3.2", "dsv3.2", "v32", "dsv32"])
def test_deepseek_by_any_name(weights: Path, name: str) -> None:
    config = replace(CONFIG, model=name, max_seq_len=128, kv_cache_dtype="bfloat16")
    layout = load(config, weights).layout
    assert isinstance(layout, MlaNsaLayout)
    assert (layout.model.name, layout.version, layout.dtype) == ("dsv32", 51, "bf16")


def test_no_mtp_by_option_and_by_tilerts_variable(
    weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = load(replace(CONFIG, with_mtp=False), weights).layout
    assert isinstance(layout, MlaNsaLayout)
    assert (layout.model.layers, layout.version) == (78, 1010)
    monkeypatch.setenv("TILERT_PD_NO_MTP", "1")
    layout = load(CONFIG, weights).layout
    assert isinstance(layout, MlaNsaLayout)
    assert layout.version == 1010
    layout = load(replace(CONFIG, with_mtp=True), weights).layout
    assert isinstance(layout, MlaNsaLayout)
    assert layout.version == 10


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"slots": 2}, "slots is 2; it must be 1 with --engine tilert"),
        ({"senders": 8}, "senders is 8; it must be 1 with --engine tilert"),
        ({"model": "llama"}, "the model is 'llama'; glm5"),
        ({"kv_cache_dtype": "int8"}, "--kv-cache-dtype is 'int8'; give one of fp8_ds_mla"),
        ({"max_seq_len": 8193}, "max_seq_len is 8193; TileRT's caches have room for 8192 tokens"),
    ],
)
def test_options_that_tilert_cannot_follow(
    weights: Path, changed: dict[str, object], message: str
) -> None:
    config = DecodeConfig(**{"engine": "tilert", "model": "glm5", **changed})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] -- of several types
    with pytest.raises(ConfigError, match=message):
        load(config, weights)


def test_the_folder_of_weights_is_needed_and_its_tokenizer(weights: Path) -> None:
    with pytest.raises(ConfigError, match="engine is 'tilert', and model_weights_dir is not given"):
        load(CONFIG, None)
    (weights / "tokenizer.json").unlink()
    with pytest.raises(ConfigError, match=r"the tokenizer of glm5 cannot be read: .*No such file"):
        load(CONFIG, weights)


@pytest.mark.parametrize("config", [ServeConfig(engine="tilert"), PrefillConfig(engine="tilert")])
def test_tilert_computes_no_prompts(config: ServeConfig | PrefillConfig) -> None:
    message = "engine is 'tilert', which computes no prompts; give it to the decode role"
    with pytest.raises(ConfigError, match=message):
        load_model(config)


def test_all_in_one_says_so_too() -> None:
    with pytest.raises(ConfigError, match="which computes no prompts"):
        build_app(ServeConfig(engine="tilert", model="glm5"))
