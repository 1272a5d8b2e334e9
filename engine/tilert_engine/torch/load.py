"""A path in, a checkpoint out: a GGUF file or a Hugging Face directory."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from tilert_engine.models.describe import readable
from tilert_engine.models.gguf_file import GGUFFile
from tilert_engine.models.gguf_model import describe_gguf
from tilert_engine.models.huggingface import describe_huggingface

from .checkpoint import Checkpoint
from .gguf_tensors import GGUFTensors
from .huggingface import HuggingFaceTensors
from .weights import assemble

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from .weights import TensorSource

__all__ = ("load",)


def load(path: Path, *, dtype: torch.dtype, device: torch.device) -> Checkpoint:
    """Load a Llama-family model.

    :raises ~tilert_stream.errors.ConfigError: the path or a part of the model is missing, damaged
        or of a kind that is not supported; the message names it and what is needed.
    """
    tensors: TensorSource
    with readable(path):
        if path.is_dir():
            description = describe_huggingface(path)
            tensors = HuggingFaceTensors(path)
        else:
            file = GGUFFile(path)
            description = describe_gguf(file)
            tensors = GGUFTensors(file, description.config)
        weights = assemble(tensors, description.config, dtype=dtype, device=device)
    known = {field.name: getattr(description, field.name) for field in fields(description)}
    return Checkpoint(**known, weights=weights)
