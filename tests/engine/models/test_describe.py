"""A model's description: its checkpoint's own, and read without torch and without weights."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from tests.engine.torch.tiny import Tiny, write_gguf, write_huggingface
from tilert_engine.models import ModelDescription, describe
from tilert_engine.torch import load
from tilert_stream.errors import ConfigError

WITHOUT_TORCH = """
import sys
from pathlib import Path
from tilert_engine.models import describe
print(describe(Path(sys.argv[1])).config.layers)
assert not {"torch", "safetensors", "transformers"} & sys.modules.keys()
"""


def written(kind: str, directory: Path) -> Path:
    if kind == "gguf":
        return write_gguf(Tiny(), directory / "tiny.gguf")
    return write_huggingface(Tiny(), directory / "tiny")


@pytest.mark.parametrize("kind", ["gguf", "directory"])
def test_a_description_is_its_checkpoints(kind: str, tmp_path: Path) -> None:
    path = written(kind, tmp_path)
    described = describe(path)
    loaded = load(path, dtype=torch.float32, device=torch.device("cpu"))
    for field in fields(ModelDescription):
        ours, theirs = getattr(described, field.name), getattr(loaded, field.name)
        if isinstance(ours, Tokenizer):
            ours, theirs = ours.to_str(), theirs.to_str()
        assert ours == theirs, field.name


@pytest.mark.parametrize("kind", ["gguf", "directory"])
def test_describing_needs_no_torch(kind: str, tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, str(written(kind, tmp_path))],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.stdout, run.stderr) == ("2\n", "")


def test_a_directory_is_described_without_its_weights(tmp_path: Path) -> None:
    path = written("directory", tmp_path)
    (path / "model.safetensors").unlink()
    assert describe(path).config.layers == 2


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'.*absent' does not exist; give the path of a GGUF"):
        describe(tmp_path / "absent")


def test_what_may_not_be_read_is_named(tmp_path: Path) -> None:
    path = written("directory", tmp_path)
    (path / "config.json").unlink()
    (path / "config.json").mkdir()
    with pytest.raises(ConfigError, match=r"cannot be read: .*config.json"):
        describe(path)
