"""TileRT brought up: all that can be missing is told before minutes are spent on weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.tilert.driving import GREEDY
from tests.engine.tilert.package import forget, install
from tilert_engine.tilert import (
    TileRTDecode,
    TileRTModel,
    ar_steps_from,
    find_model,
    load_generator,
)
from tilert_stream.errors import ConfigError
from tilert_stream.events import Limits
from tilert_stream.testing.tilert_fake import TOKEN_OUT, FakeGenerator

GLM5 = find_model("glm5")
DSV32 = find_model("dsv32")


@pytest.fixture(autouse=True)
def _no_package_stays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:  # pyright: ignore[reportUnusedFunction] -- used by pytest
    yield
    forget(monkeypatch)


@pytest.mark.parametrize("name", ["glm5", "glm_5", "glm-5", "GLM-5"])
def test_names_of_glm5(name: str) -> None:
    assert find_model(name) is GLM5


@pytest.mark.parametrize("name", ["dsv32", "deepseek_v3_2", "deepseek-v3.2", "dsv3.2", "v32"])
def test_names_of_deepseek(name: str) -> None:
    assert find_model(name) is DSV32


def test_an_unmodel_model_is_told_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"the model is 'llama'; glm5 .* dsv32 "):
        find_model("llama")


@pytest.mark.parametrize("with_mtp", [True, False])
@pytest.mark.parametrize("model", [GLM5, DSV32], ids=["glm5", "dsv32"])
def test_a_loaded_generator_decodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: TileRTModel, with_mtp: bool
) -> None:
    weights = install(tmp_path, monkeypatch)
    loaded = load_generator(model, weights, with_mtp=with_mtp)
    fake = loaded.generator
    assert isinstance(fake, FakeGenerator)
    assert getattr(fake, "ready") is True  # noqa: B009 - the package's own attribute
    assert loaded.token_out == (0 if model is GLM5 else TOKEN_OUT)
    engine = TileRTDecode(fake, model=fake.model, with_mtp=with_mtp, token_out=loaded.token_out)
    assert engine.stop_ids == {7, 8}
    sequence = engine.open(0, fake.kv(tokens=3), 100, Limits(2), GREEDY)
    assert engine.advance(sequence).batch.ids == (101,)


def test_without_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    forget(monkeypatch)
    with pytest.raises(ConfigError, match="tilert cannot be imported: No module") as e:
        load_generator(GLM5, tmp_path, with_mtp=True)
    assert e.value.param == "engine"
    assert "pip install tilert" in e.value.message
    assert "--engine torch" in e.value.message


def test_a_package_that_cannot_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    weights = install(tmp_path, monkeypatch)
    broken = tmp_path / "site" / "tilert" / "__init__.py"
    broken.write_text("raise OSError('libcudart.so.13: cannot open shared object file')")
    with pytest.raises(ConfigError, match=r"cannot be imported: libcudart\.so\.13"):
        load_generator(GLM5, weights, with_mtp=True)


@pytest.mark.parametrize("devices", [0, 7])
def test_without_its_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, devices: int) -> None:
    weights = install(tmp_path, monkeypatch, devices=devices)
    with pytest.raises(ConfigError, match=f"torch sees {devices} CUDA devices, glm5 needs 8"):
        load_generator(GLM5, weights, with_mtp=True)


def test_without_its_weights(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    weights = install(tmp_path, monkeypatch)
    with pytest.raises(ConfigError, match=r"there is no such folder.*weight converter"):
        load_generator(GLM5, weights / "elsewhere", with_mtp=True)
    (weights / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"TileRT cannot load glm5 from .*: no weights here"):
        load_generator(GLM5, weights, with_mtp=True)


def test_one_backend_a_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    weights = install(tmp_path, monkeypatch)
    load_generator(GLM5, weights, with_mtp=True)
    with pytest.raises(ConfigError, match="backend glm5 already loaded; cannot load deepseek_v3_2"):
        load_generator(DSV32, weights, with_mtp=True)


def test_a_package_of_one_model_has_no_choice_of_backends(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    weights = install(tmp_path, monkeypatch)
    (tmp_path / "site" / "tilert" / "__init__.py").write_text("")
    assert load_generator(GLM5, weights, with_mtp=False).token_out == 0


@pytest.mark.parametrize(
    ("environ", "steps"),
    [
        ({}, 8),
        ({"GLM5_AR_N": ""}, 8),
        ({"GLM5_AR_N": "16"}, 16),
        ({"GLM5_AR_N": "0"}, 1),
        ({"GLM5_AR_N": "-3"}, 1),
        ({"GLM5_AR_N": "5000"}, 1024),
    ],
)
def test_tilerts_own_chain_length(environ: dict[str, str], steps: int) -> None:
    assert ar_steps_from(environ, 8) == steps


def test_a_chain_length_that_is_no_number() -> None:
    with pytest.raises(ConfigError, match="GLM5_AR_N is 'many'; it must be an integer"):
        ar_steps_from({"GLM5_AR_N": "many"}, 8)
