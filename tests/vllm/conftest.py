"""A real vLLM, in an environment of its own: ``make test-vllm`` makes it and names its python."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from tests.engine.torch.answer import GREEDY, prefill
from tests.vllm.model_directory import write_model_directory
from tilert_engine.torch import Checkpoint, KVCache, TorchDecode, TorchPrefill, load
from tilert_stream.events import Limits
from tilert_stream.serve import demo_model

PYTHON = "VLLM_PYTHON"
CPU = torch.device("cpu")


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, object]]:
    """One is enough: what is tried here is vLLM."""
    return "asyncio", {}


@pytest.fixture(scope="session")
def vllm_python() -> str:
    python = os.environ.get(PYTHON)
    if python is None:
        pytest.skip(f"{PYTHON} does not name a python that has vLLM; run: make test-vllm")
    return python


@pytest.fixture(scope="session")
def gguf() -> Path:
    path = demo_model.locate()
    if path is None:
        pytest.skip("the demo model is not in the cache; bring it with: make model")
    return path


@pytest.fixture(scope="session")
def model_directory(gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model_directory(gguf, tmp_path_factory.mktemp("models"))


@dataclass
class Whole:
    """The undivided model, in this process."""

    checkpoint: Checkpoint
    prefill: TorchPrefill
    decode: TorchDecode

    def text(self, tokens: int) -> list[int]:
        """The first ids of a text."""
        path = Path(__file__).parents[2] / "LICENSE"
        return self.checkpoint.tokenizer.encode(path.read_text()).ids[:tokens]

    def cache(self, prompt: Sequence[int]) -> KVCache:
        return prefill(self.prefill, prompt, Limits(1)).kv

    def go_on(self, kv: object, first: int, count: int) -> list[int]:
        """Greedy ids from a KV cache and its first token on."""
        ids, finished = [first], None
        sequence = self.decode.open(0, kv, first, Limits(count), GREEDY)
        while finished is None:
            harvest = self.decode.advance(sequence)
            finished = harvest.finished
            ids += harvest.batch.ids
        self.decode.close(sequence)
        return ids

    def answer(self, prompt: Sequence[int], count: int) -> list[int]:
        output = prefill(self.prefill, prompt, Limits(count))
        return self.go_on(output.kv, output.first.ids[0], count)


@pytest.fixture(scope="session")
def whole(gguf: Path) -> Whole:
    checkpoint = load(gguf, dtype=torch.float32, device=CPU)
    return Whole(
        checkpoint,
        TorchPrefill(checkpoint, max_seq_len=2048),
        TorchDecode(checkpoint, slots=1, max_seq_len=2048, ar_steps=1),
    )
