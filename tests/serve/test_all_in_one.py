"""What is checked before a model is loaded."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tilert_stream.config import ServeConfig, StagePlacement
from tilert_stream.errors import ConfigError, StageNotFound
from tilert_stream.serve import all_in_one
from tilert_stream.serve.all_in_one import run


def test_trio_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trio", None)
    with pytest.raises(ConfigError, match=r"pip install 'tilert-stream\[trio\]'") as caught:
        run(ServeConfig(engine="scripted", backend="trio"))
    assert caught.value.param == "backend"


def test_a_wrong_stage_is_told_before_the_model_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_model(_config: ServeConfig) -> None:
        raise AssertionError("the model was loaded")

    monkeypatch.setattr(all_in_one, "load_model", load_model)
    config = ServeConfig(stages=(StagePlacement("no_such_stage", "after", "detokenize"),))
    with pytest.raises(StageNotFound, match="no_such_stage"):
        all_in_one.build_app(config)


def test_more_workers_than_one_are_refused() -> None:
    with pytest.raises(ConfigError, match="decode slots belong to one process") as caught:
        run(ServeConfig(engine="scripted", workers=2))
    assert caught.value.param == "workers"


def test_a_key_without_its_certificate_is_told_before_the_model_is_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(all_in_one, "load_model", None)
    with pytest.raises(ConfigError, match="ssl_certfile"):
        run(ServeConfig(ssl_keyfile=Path("key.pem")))
