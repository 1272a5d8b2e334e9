"""What several tests of whole clusters share."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest
import torch

from tests.nodes.vllm_stand_in import imported_plugin
from tilert_stream.config import RouterConfig
from tilert_stream.serve import router
from tilert_stream.serve.front import Front, load_front


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction] -- used by pytest
    """Where cores are shared with other test runs, two threads wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def plugin() -> Iterator[ModuleType]:
    """Our connector, on a stand-in of vLLM."""
    with imported_plugin() as module:
        yield module


@pytest.fixture(scope="module")
def front() -> Front:
    return load_front(RouterConfig(model="tiny-glm5"))


@pytest.fixture
def loaded_front(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    """Routers do not load it again."""

    def loaded(_config: RouterConfig) -> Front:
        return front

    monkeypatch.setattr(router, "load_front", loaded)
