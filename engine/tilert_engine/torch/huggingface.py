"""The tensors of a Hugging Face directory, by name: a path in, a ``TensorSource`` out.

Reads ``model.safetensors``, or the shards that ``model.safetensors.index.json`` names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, cast

from safetensors import SafetensorError, safe_open

from tilert_engine.models.huggingface import read_json
from tilert_stream.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    import torch

__all__ = ("HuggingFaceTensors",)

_INDEX: Final = "model.safetensors.index.json"
_SINGLE: Final = "model.safetensors"


class _SafeTensors(Protocol):
    """What ``safe_open`` returns; its own methods carry no types."""

    def keys(self) -> list[str]: ...

    def get_tensor(self, name: str, /) -> torch.Tensor: ...


class HuggingFaceTensors:
    """The tensors of one or several safetensors files.

    :raises ~tilert_stream.errors.ConfigError: a file is missing or damaged.
    """

    def __init__(self, directory: Path) -> None:
        self.name = directory.name
        self._files: dict[str, Path] = {}
        self._open: dict[Path, _SafeTensors] = {}
        index = directory / _INDEX
        if index.exists():
            shards = read_json(index).mapping("weight_map")
            if shards is None:
                raise ConfigError(f"{self.name}: {_INDEX} has no 'weight_map'; download it again")
            names = {directory / shards.text(tensor) for tensor in shards}
        else:
            names = {directory / _SINGLE}
        for file in sorted(names):
            self._add(file)

    def tensor(self, name: str) -> torch.Tensor:
        """A tensor as it is stored.

        :raises ~tilert_stream.errors.ConfigError: it is missing.
        """
        file = self._files.get(name)
        if file is None:
            raise ConfigError(
                f"{self.name}: tensor {name!r} is missing; the checkpoint has "
                f"{len(self._files)} tensors. Download it again"
            )
        return self._open[file].get_tensor(name)

    def _add(self, file: Path) -> None:
        if not file.exists():
            raise ConfigError(f"{self.name}: {file.name} is missing; download the model again")
        try:
            handle = cast("_SafeTensors", safe_open(file, framework="pt"))
        except SafetensorError as error:
            raise ConfigError(
                f"{self.name}: {file.name} ({file.stat().st_size} bytes) cannot be read: {error}; "
                "it is truncated or damaged: download it again"
            ) from error
        self._open[file] = handle
        for name in handle.keys():  # noqa: SIM118 -- not a mapping, only has keys()
            self._files[name] = file
