"""TileRT brought up: a model and its weights folder in, a generator with its weights loaded out.

Everything that can be missing is looked for before the weights, which take minutes.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, cast

import torch

from tilert_engine.chains import LONGEST_CHAIN
from tilert_stream.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from types import ModuleType

    from .device import Generator
    from .models import TileRTModel

__all__ = ("DEVICES", "Loaded", "ar_steps_from", "load_generator")

DEVICES: Final = 8
"""GPUs that a model is laid out for."""
_STEPS_VARIABLE: Final = "GLM5_AR_N"


@dataclass(frozen=True, slots=True)
class Loaded:
    """A generator, ready."""

    generator: Generator
    token_out: int
    """``Idx.TOKEN_OUT``: where a single step leaves its token; 0 where steps are chained."""


class _Loading(Protocol):
    def from_pretrained(self) -> None: ...


def load_generator(model: TileRTModel, weights: Path, *, with_mtp: bool) -> Loaded:
    """Load ``model``; blocks for minutes. TileRT takes one model a process.

    :param weights: the folder that TileRT's weight converter wrote.
    :raises ~tilert_stream.errors.ConfigError: TileRT, its GPUs or the weights are missing, or the
        process has another model's library loaded.
    """
    tilert = _tilert()
    seen = torch.cuda.device_count()
    if seen < DEVICES:
        raise ConfigError(
            f"engine is 'tilert'; torch sees {seen} CUDA devices, {model.name} needs {DEVICES} in"
            " this machine. On fewer, give --engine torch",
            param="engine",
        )
    if not weights.is_dir():
        raise ConfigError(
            f"model_weights_dir is {str(weights)!r}; there is no such folder. Give the one that"
            " TileRT's weight converter wrote",
            param="model_weights_dir",
        )
    try:
        # Versions with one model only have their library loaded on import.
        load_backend = getattr(tilert, "load_backend", None)
        if load_backend is not None:
            cast("Callable[[str], object]", load_backend)(model.backend)
        generator = _generator(model, weights, with_mtp=with_mtp)
        token_out = _token_out(model)
        cast("_Loading", generator).from_pretrained()
    except (ImportError, AttributeError, OSError, RuntimeError, ValueError) as error:
        raise ConfigError(
            f"TileRT cannot load {model.name} from {str(weights)!r}: {error}", param="engine"
        ) from error
    return Loaded(generator, token_out)


def _tilert() -> ModuleType:
    try:
        return importlib.import_module("tilert")
    except (ImportError, OSError, RuntimeError) as error:
        raise ConfigError(
            f"engine is 'tilert'; the package tilert cannot be imported: {error}. Install it with:"
            " pip install tilert (Linux, its own version of torch, NVIDIA GPUs), or give --engine"
            " torch",
            param="engine",
        ) from error


def _generator(model: TileRTModel, weights: Path, *, with_mtp: bool) -> Generator:
    arguments = getattr(importlib.import_module(f"{model.package}.model_args"), model.arguments)
    made = getattr(importlib.import_module(f"{model.package}.generator"), model.generator)
    return cast("Callable[..., Generator]", made)(
        model_args=cast("Callable[[], object]", arguments)(),
        model_weights_dir=str(weights),
        with_mtp=with_mtp,
        use_topp=True,
    )


def _token_out(model: TileRTModel) -> int:
    if model.indices is None:
        return 0
    return int(cast("int", importlib.import_module(model.indices).Idx.TOKEN_OUT))


def ar_steps_from(environ: Mapping[str, str], default: int) -> int:
    """TileRT's own setting of the chain length, ``GLM5_AR_N``, kept within 1 to 1024 as there.

    :raises ~tilert_stream.errors.ConfigError: it is no integer.
    """
    text = environ.get(_STEPS_VARIABLE)
    if not text:
        return default
    try:
        return min(max(int(text), 1), LONGEST_CHAIN)
    except ValueError:
        raise ConfigError(
            f"{_STEPS_VARIABLE} is {text!r}; it must be an integer from 1 to {LONGEST_CHAIN}"
        ) from None
