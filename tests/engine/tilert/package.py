"""A package ``tilert`` of the real one's shape, whose generators are the fake's."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
import torch

from tilert_engine.tilert.load import DEVICES
from tilert_stream.testing.tilert_fake import TOKEN_OUT

if TYPE_CHECKING:
    from pathlib import Path

_GENERATOR = """
import os
from tilert_stream.testing.tilert_fake import FakeGenerator, FakeModel

class {name}(FakeGenerator):
    def __init__(self, model_args, model_weights_dir="", with_mtp=False, use_topp=False):
        super().__init__(
            FakeModel(token=lambda index: 100 + index),
            with_mtp=with_mtp, chains={chains}, layers={layers}, window=model_args.max_seq_len,
            stop_token_ids=(7, 8),
        )
        self.config, self.folder, self.ready = model_args, model_weights_dir, False
        assert use_topp

    def from_pretrained(self):
        if not os.listdir(self.folder):
            raise ValueError("no weights here")
        self.ready = True
"""

FILES = {
    "__init__.py": """
loaded = None
def load_backend(name):
    global loaded
    if loaded not in (None, name):
        raise RuntimeError(f"backend {loaded} already loaded; cannot load {name}")
    loaded = name
""",
    "models/__init__.py": "",
    "models/glm_5/__init__.py": "",
    "models/glm_5/model_args.py": "class ModelArgsGLM5:\n    max_seq_len = 8192\n",
    "models/glm_5/generator.py": _GENERATOR.format(name="GLM5Generator", chains=True, layers=78),
    "models/deepseek_v3_2/__init__.py": "",
    "models/deepseek_v3_2/model_args.py": "class ModelArgs:\n    max_seq_len = 256\n",
    "models/deepseek_v3_2/generator.py": _GENERATOR.format(
        name="DSAv32Generator", chains=False, layers=61
    ),
    "models/deepseek_v3_2/temp_var_indices.py": f"class Idx:\n    TOKEN_OUT = {TOKEN_OUT}\n",
}


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the next import of ``tilert`` look for it again."""
    for name in [name for name in sys.modules if name.split(".")[0] == "tilert"]:
        monkeypatch.delitem(sys.modules, name)


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, *, devices: int = DEVICES) -> Path:
    """Put the package on the path, and GPUs into the machine; a folder of weights."""
    for name, text in FILES.items():
        file = folder / "site" / "tilert" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    monkeypatch.setattr(sys, "path", [str(folder / "site"), *sys.path])
    monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
    forget(monkeypatch)
    weights = folder / "weights"
    weights.mkdir()
    (weights / "model.safetensors").touch()
    return weights
