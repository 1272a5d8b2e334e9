"""The one call that the server makes, and what it says when something is not installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.engine.torch.answer import answer
from tests.engine.torch.tiny import Tiny, reference_greedy, write_huggingface
from tilert_engine.torch import build
from tilert_stream.errors import ConfigError
from tilert_stream.events import Limits


@pytest.fixture(scope="module")
def path(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_huggingface(tiny, tmp_path_factory.mktemp("build") / "model")


def test_a_path_becomes_two_engines(tiny: Tiny, path: Path) -> None:
    threads = torch.get_num_threads()
    built = build(path, slots=3, max_seq_len=32, ar_steps=2, device="cpu", threads=threads)
    assert (built.decode.slots, built.decode.max_seq_len) == (3, 32)
    assert built.prefill.max_seq_len == 32
    assert built.checkpoint.weights.dtype == torch.float32
    ids, _ = answer(built.prefill, built.decode, [5, 6, 7], Limits(9), slot=2)
    assert ids == reference_greedy(tiny, [5, 6, 7], 9)


def test_the_window_is_the_models_where_none_is_asked_for(path: Path) -> None:
    assert build(path, device="cpu").decode.max_seq_len == Tiny().positions


def test_both_halves_run_in_bfloat16(path: Path) -> None:
    built = build(path, device="cpu", dtype="bfloat16")
    assert built.checkpoint.weights.dtype == torch.bfloat16
    ids, finished = answer(built.prefill, built.decode, [5, 6, 7], Limits(9))
    assert (len(ids), finished.reason) == (9, "length")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "abacus"}, "device is 'abacus'; give auto, cpu, cuda"),
        ({"device": "meta"}, "device is 'meta'; give auto, cpu, cuda"),
        ({"device": "cuda:99"}, r"device is 'cuda:99', torch sees \d+ CUDA devices"),
        ({"device": "cpu", "dtype": "int8"}, "dtype is 'int8'; give auto, float32"),
        ({"device": "cpu", "threads": 0}, "threads is 0"),
    ],
)
def test_a_wrong_option_is_named(path: Path, options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(path, **options)  # type: ignore[arg-type]  # threads is an int among strings


@pytest.mark.parametrize("package", ["gguf", "numpy", "safetensors", "torch"])
def test_a_missing_package_says_how_to_install_it(package: str) -> None:
    code = f"""
import sys
sys.modules[{package!r}] = None
import tilert_engine
assert not {{"gguf", "safetensors", "numpy"}} & sys.modules.keys() - {{{package!r}}}
from tilert_stream.errors import ConfigError
try:
    import tilert_engine.torch
except ConfigError as error:
    print(error.message)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert f"needs the package '{package}'" in done.stdout
    assert "pip install 'tilert-stream[engine]'" in done.stdout
