"""The shipped model, loaded once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.engine.glm.asking import Answer, stored
from tilert_engine.glm import Built, GLMCheckpoint, GLMPrefill, build


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction] -- used by pytest
    """Where cores are shared with other test runs, two threads wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def built() -> Built:
    return build(slots=2, max_seq_len=512)


@pytest.fixture(scope="session")
def checkpoint(built: Built) -> GLMCheckpoint:
    return built.checkpoint


@pytest.fixture(scope="session")
def prefiller(built: Built) -> GLMPrefill:
    return built.prefill


@pytest.fixture(scope="session")
def answers() -> list[Answer]:
    return stored()
