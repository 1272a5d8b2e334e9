"""A GGUF file: a path in, metadata and dequantised tensors out.

The format (versions 2 and 3, little-endian) is specified in ggml's ``docs/gguf.md``. The header is
parsed here, because the ``gguf`` package builds several numpy objects for every vocabulary entry
(seconds for a real model); dequantisation is the package's.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Final

import gguf
import numpy as np

from tilert_stream.errors import ConfigError

from .metadata import Metadata

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

__all__ = ("GGUFFile",)

_MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
_SCALARS: Final = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_STRING: Final = 8
_ARRAY: Final = 9


@dataclass(frozen=True, slots=True)
class _TensorInfo:
    shape: tuple[int, ...]
    """Outermost dimension first, as torch writes it."""
    kind: gguf.GGMLQuantizationType
    offset: int
    nbytes: int


class _Cursor:
    """Reads the header in order."""

    def __init__(self, data: mmap.mmap) -> None:
        self.position = 0
        self._data = data

    def scalar(self, form: str) -> int | float | bool:
        value: int | float | bool = struct.unpack_from(form, self._data, self.position)[0]
        self.position += struct.calcsize(form)
        return value

    def count(self, form: str = "<Q") -> int:
        return int(self.scalar(form))

    def text(self) -> str:
        length = self.count()
        start, self.position = self.position, self.position + length
        if self.position > len(self._data):
            raise struct.error(f"a string of {length} bytes ends after the file")
        return self._data[start : self.position].decode()

    def value(self, kind: int) -> object:
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            return self._array()
        if kind not in _SCALARS:
            raise struct.error(f"unknown value type {kind}")
        return self.scalar(_SCALARS[kind])

    def _array(self) -> list[object]:
        kind, length = self.count("<I"), self.count()
        if kind in _SCALARS:
            form = f"<{length}{_SCALARS[kind][1]}"
            values: list[object] = list(struct.unpack_from(form, self._data, self.position))
            self.position += struct.calcsize(form)
            return values
        return [self.value(kind) for _ in range(length)]


class GGUFFile:
    """A memory-mapped GGUF file.

    :raises ~tilert_stream.errors.ConfigError: no GGUF file, another version, or a truncated one.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.stat().st_size < len(_MAGIC):
            raise ConfigError(f"{path.name} has {path.stat().st_size} bytes; it is no GGUF file")
        with path.open("rb") as file:
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if self._data[: len(_MAGIC)] != _MAGIC:
            raise ConfigError(
                f"{path.name} begins with {self._data[:4]!r}, a GGUF file begins with {_MAGIC!r}; "
                "give the path of a GGUF file or of a Hugging Face directory"
            )
        try:
            values = self._read_header()
        except (struct.error, ValueError, RecursionError) as error:
            raise ConfigError(
                f"{path.name}: the GGUF header cannot be read ({error}); the file is truncated or "
                "damaged: download it again"
            ) from error
        self.metadata = Metadata(path.name, values)
        self._check_extent()

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape, outermost dimension first.

        :raises ~tilert_stream.errors.ConfigError: no such tensor.
        """
        return self._info(name).shape

    def tensor(self, name: str) -> NDArray[np.float32]:
        """A tensor, dequantised to float32; writable.

        :raises ~tilert_stream.errors.ConfigError: no such tensor, or a quantisation that the
            ``gguf`` package cannot undo.
        """
        info = self._info(name)
        raw: NDArray[np.uint8] = np.frombuffer(
            self._data, dtype=np.uint8, count=info.nbytes, offset=info.offset
        )
        rows = raw.reshape(*info.shape[:-1], -1)
        try:
            # Blocks of a damaged file overflow; what is not finite shows in the logits.
            with np.errstate(all="ignore"):
                values = gguf.dequantize(rows, info.kind)
        except NotImplementedError as error:
            raise ConfigError(
                f"{self.path.name}: tensor {name!r} is quantised as {info.kind.name}, which cannot "
                "be dequantised; take a file in Q4_1, Q4_K, Q8_0, F16 or the like"
            ) from error
        # An F32 tensor is a view of the read-only mapping, which torch must not get: copied.
        return np.require(values, np.float32, "W").reshape(info.shape)

    def _info(self, name: str) -> _TensorInfo:
        try:
            return self._tensors[name]
        except KeyError:
            raise ConfigError(
                f"{self.path.name}: tensor {name!r} is missing; it has {len(self._tensors)} "
                "tensors. Convert or download the model again"
            ) from None

    def _read_header(self) -> dict[str, object]:
        cursor = _Cursor(self._data)
        cursor.position = len(_MAGIC)
        version = cursor.count("<I")
        if version not in _VERSIONS:
            raise ValueError(f"version {version}, versions 2 and 3 (little-endian) are read")
        tensors, pairs = cursor.count(), cursor.count()
        values: dict[str, object] = {}
        for _ in range(pairs):
            key = cursor.text()
            values[key] = cursor.value(cursor.count("<I"))
        infos = [self._read_info(cursor) for _ in range(tensors)]
        alignment = Metadata(self.path.name, values).integer("general.alignment", 32)
        if alignment < 1:
            raise ValueError(f"general.alignment is {alignment}")
        start = -(-cursor.position // alignment) * alignment
        self._tensors = {
            name: _TensorInfo(info.shape, info.kind, start + info.offset, info.nbytes)
            for name, info in infos
        }
        return values

    @staticmethod
    def _read_info(cursor: _Cursor) -> tuple[str, _TensorInfo]:
        name = cursor.text()
        # GGUF writes the innermost dimension first.
        shape = tuple(reversed([cursor.count() for _ in range(cursor.count("<I"))]))
        kind = gguf.GGMLQuantizationType(cursor.count("<I"))
        offset = cursor.count()
        block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        if not shape or shape[-1] % block:
            raise ValueError(f"tensor {name!r} of shape {shape} is not made of blocks of {block}")
        return name, _TensorInfo(shape, kind, offset, prod(shape) // block * block_bytes)

    def _check_extent(self) -> None:
        size = len(self._data)
        for name, info in self._tensors.items():
            if info.offset + info.nbytes > size:
                raise ConfigError(
                    f"{self.path.name} has {size} bytes, tensor {name!r} ends at byte "
                    f"{info.offset + info.nbytes}; the file is truncated: download it again"
                )
