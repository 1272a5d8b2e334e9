"""What is served where no model is named: SmolLM2 if it is in the cache, else what is shipped."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tilert_stream.config import DecodeConfig, PrefillConfig, RouterConfig, ServeConfig
from tilert_stream.serve import demo_model
from tilert_stream.serve.front import choose

ROOT = Path(__file__).parents[2]


def test_the_demo_model_is_taken_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_model, "locate", lambda: Path("there.gguf"))
    assert choose("auto") == "demo"


def test_the_shipped_one_is_taken_elsewhere_and_nothing_is_fetched(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TILERT_STREAM_CACHE", str(tmp_path / "empty"))
    monkeypatch.setattr(demo_model, "obtain", None)
    with caplog.at_level(logging.INFO, "tilert_stream"):
        assert choose("auto") == "tiny-glm5"
    assert "tilert_stream.serve.demo_model" in caplog.text
    assert not (tmp_path / "empty").exists()


@pytest.mark.parametrize("model", ["demo", "tiny-glm5", "a/path.gguf"])
def test_a_named_model_is_that_one(model: str) -> None:
    assert choose(model) == model


def test_only_the_server_in_one_process_chooses() -> None:
    assert ServeConfig().model == "auto"
    assert {role().model for role in (RouterConfig, PrefillConfig, DecodeConfig)} == {"demo"}


@pytest.mark.skipif(shutil.which("make") is None, reason="no make")
@pytest.mark.parametrize("target", ["serve", "pd"])
@pytest.mark.parametrize(
    ("arguments", "brings"),
    [
        ("", True),
        ("--port 9000 --served-model-name x", True),
        ("--model tiny-glm5", False),
        ("--model=x.gguf", False),
        ("--engine scripted", False),
    ],
)
def test_make_brings_the_demo_model_only_where_it_is_wanted(
    target: str, arguments: str, brings: bool
) -> None:
    command = ["make", "--dry-run", "--old-file=.venv/.serve", target, f"ARGS={arguments}"]
    # The tests themselves may be run by make, which hands its own options down.
    environment = {name: value for name, value in os.environ.items() if "MAKE" not in name}
    said = subprocess.run(
        command, cwd=ROOT, check=True, capture_output=True, text=True, env=environment
    ).stdout
    assert ("serve.demo_model" in said) is brings
    assert said.rstrip().endswith(arguments)
