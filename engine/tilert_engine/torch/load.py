"""A path in, a checkpoint out: a GGUF file or a Hugging Face directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilert_stream.errors import ConfigError

from .gguf_checkpoint import load_gguf
from .huggingface import load_huggingface

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from .checkpoint import Checkpoint

__all__ = ("load",)


def load(path: Path, *, dtype: torch.dtype, device: torch.device) -> Checkpoint:
    """Load a Llama-family model.

    :raises ~tilert_stream.errors.ConfigError: the path or a part of the model is missing, damaged
        or of a kind that is not supported; the message names it and what is needed.
    """
    if not path.exists():
        raise ConfigError(
            f"the model {str(path)!r} does not exist; give the path of a GGUF file or of a "
            "Hugging Face directory"
        )
    loader = load_huggingface if path.is_dir() else load_gguf
    try:
        return loader(path, dtype=dtype, device=device)
    except OSError as error:
        raise ConfigError(
            f"the model {str(path)!r} cannot be read: {error}; check what it is and who may read it"
        ) from error
