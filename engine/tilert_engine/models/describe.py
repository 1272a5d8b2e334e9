"""A path in, a model's description out: a GGUF file or a Hugging Face directory."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from tilert_stream.errors import ConfigError

from .gguf_file import GGUFFile
from .gguf_model import describe_gguf
from .huggingface import describe_huggingface

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from .description import ModelDescription

__all__ = ("describe", "readable")


def describe(path: Path) -> ModelDescription:
    """Read a Llama-family model's metadata; its weights need not be there in a directory.

    :raises ~tilert_stream.errors.ConfigError: the path or a part of the model is missing, damaged
        or of a kind that is not supported; the message names it and what is needed.
    """
    with readable(path):
        return describe_huggingface(path) if path.is_dir() else describe_gguf(GGUFFile(path))


@contextmanager
def readable(path: Path) -> Generator[None]:
    """Turn what the file system says into an error that names the model.

    :raises ~tilert_stream.errors.ConfigError: the path is missing, or cannot be read.
    """
    if not path.exists():
        raise ConfigError(
            f"the model {str(path)!r} does not exist; give the path of a GGUF file or of a "
            "Hugging Face directory"
        )
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"the model {str(path)!r} cannot be read: {error}; check what it is and who may read it"
        ) from error
