"""Tiny checkpoints on disk and in memory, and the demo model where it is installed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.engine.torch.tiny import Tiny, write_huggingface
from tilert_engine.torch import Checkpoint, load
from tilert_stream.serve import demo_model

CPU = torch.device("cpu")


@pytest.fixture(scope="session")
def tiny() -> Tiny:
    return Tiny()


@pytest.fixture(scope="session")
def checkpoint(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    path = write_huggingface(tiny, tmp_path_factory.mktemp("models") / "tiny")
    return load(path, dtype=torch.float32, device=CPU)


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    path = demo_model.locate()
    if path is None:
        pytest.skip("the demo model is not in the cache; bring it with: make model")
    return path
