"""Tiny checkpoints on disk and in memory, and the demo model where it is installed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.engine.torch.tiny import Tiny, write_huggingface
from tilert_engine.torch import Checkpoint, load
from tilert_stream.serve import demo_model

CPU = torch.device("cpu")


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction] -- used by pytest
    """Where cores are shared with other test runs, two threads wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


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
