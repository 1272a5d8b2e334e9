"""Typed reading of parsed metadata: a mapping of unknown values in, checked values out.

Serves ``config.json`` and its neighbours as well as GGUF metadata; every error names the source,
the key, the value got and the type needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilert_stream.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ("Metadata",)


class Metadata:
    """A checked view of ``values``; ``source`` is named in errors. An absent key equals null."""

    def __init__(self, source: str, values: Mapping[str, object]) -> None:
        self.source = source
        self._values = values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def get(self, key: str) -> object:
        """The value as it is; None where it is absent."""
        return self._values.get(key)

    def integer(self, key: str, default: int | None = None) -> int:
        """An int. Without a default the key is required."""
        value = self._present(key, default, "an integer")
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(key, value, "an integer")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A float, or an int taken as one. Without a default the key is required."""
        value = self._present(key, default, "a number")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(key, value, "a number")
        return float(value)

    def flag(self, key: str, *, default: bool) -> bool:
        """A bool."""
        value = self._present(key, default, "true or false")
        if not isinstance(value, bool):
            raise self._wrong(key, value, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A string. Without a default the key is required."""
        value = self._present(key, default, "a string")
        if not isinstance(value, str):
            raise self._wrong(key, value, "a string")
        return value

    def integers(self, key: str) -> tuple[int, ...]:
        """A list of ints, or one int taken as a list of one; empty where absent."""
        items = self.items(key)
        ids = tuple(i for i in items if isinstance(i, int) and not isinstance(i, bool))
        if len(ids) != len(items):
            raise self._wrong(key, self.get(key), "an integer or a list of integers")
        return ids

    def texts(self, key: str) -> list[str]:
        """A list of strings; empty where absent."""
        items = self.items(key)
        strings = [item for item in items if isinstance(item, str)]
        if len(strings) != len(items):
            raise self._wrong(key, self.get(key), "a list of strings")
        return strings

    def items(self, key: str) -> tuple[object, ...]:
        """A list of anything, or one thing taken as a list of one; empty where absent."""
        value = self.get(key)
        if value is None:
            return ()
        if isinstance(value, list | tuple):
            return tuple(value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType] -- parsed JSON has no element type
        return (value,)

    def mapping(self, key: str) -> Metadata | None:
        """A nested mapping; None where absent."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self._wrong(key, value, "an object")
        inner: dict[str, object] = value  # pyright: ignore[reportUnknownVariableType] -- parsed JSON: keys are strings
        return Metadata(f"{self.source}: {key}", inner)

    def _present(self, key: str, default: object, needed: str) -> object:
        value = self._values.get(key)
        if value is not None:
            return value
        if default is None:
            raise ConfigError(
                f"{self.source}: {key!r} is missing; it must be {needed}. "
                "The checkpoint is incomplete: convert or download it again"
            )
        return default

    def _wrong(self, key: str, value: object, needed: str) -> ConfigError:
        return ConfigError(f"{self.source}: {key!r} is {value!r:.80}; it must be {needed}")
