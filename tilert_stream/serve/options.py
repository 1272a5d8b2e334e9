"""Options of a role: a configuration class in, how each is named and read out.

One description serves three places. ``served_model_names`` of the class is ``--served-model-name``
on the command line, ``TILERT_STREAM_SERVED_MODEL_NAME`` in the environment and
``served_model_name`` in the file.
"""

from __future__ import annotations

import types
from dataclasses import MISSING, Field, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal, Union, cast, get_args, get_origin, get_type_hints

from tilert_stream.config import Option, StagePlacement
from tilert_stream.errors import ConfigError

__all__ = ("PREFIX", "OptionSpec", "option_specs")

PREFIX: Final = "TILERT_STREAM_"

_TRUE: Final = ("1", "true", "yes", "on")
_FALSE: Final = ("0", "false", "no", "off")
_NEEDS: Final[dict[type, str]] = {
    str: "text",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    Path: "a path",
    StagePlacement: "of the form module:attr@after=STAGE (or @before=, @replace=)",
}


@dataclass(frozen=True)
class OptionSpec:
    """One option, as the three places see it."""

    name: str
    """The field of the configuration class."""
    type: type[str | int | float | bool | Path | StagePlacement]
    """What one value is."""
    hint: Any
    """What one value is, as annotated: a Literal where the values are listed."""
    repeated: bool
    option: Option
    default: object

    @cached_property
    def key(self) -> str:
        """Its name in the file."""
        return self.option.singular or self.name

    @cached_property
    def flag(self) -> str:
        """Its name on the command line."""
        return f"--{self.key.replace('_', '-')}"

    @cached_property
    def negative(self) -> str:
        """The name of a switch's other side on the command line."""
        return f"--{self.option.negative or f'no-{self.flag[2:]}'}"

    @cached_property
    def variable(self) -> str:
        """Its name in the environment."""
        return PREFIX + self.key.upper()

    @cached_property
    def choices(self) -> tuple[str, ...]:
        """The values there are, where they are listed; they are text."""
        return get_args(self.hint) if get_origin(self.hint) is Literal else ()

    @cached_property
    def needs(self) -> str:
        """What a value must be, in words."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        return _NEEDS[self.type] + self.option.range()

    def from_text(self, text: str, where: str) -> object:
        """The value of ``text``, which stood at ``where``; repeated values are parted by commas.

        :raises ~tilert_stream.errors.ConfigError: it cannot be read, or is out of range.
        """
        if self.repeated:
            parts = (part.strip() for part in text.split(","))
            return tuple(self._value(part, where) for part in parts if part)
        return self._value(text, where)

    def from_arguments(self, given: object) -> object:
        """The value of what the command line gave: text, a bool, or a list of texts.

        :raises ~tilert_stream.errors.ConfigError: it cannot be read, or is out of range.
        """
        if isinstance(given, list | tuple):
            texts = cast("list[str] | tuple[str, ...]", given)
            return tuple(self._value(text, self.flag) for text in texts)
        return given if isinstance(given, bool) else self._value(str(given), self.flag)

    def from_toml(self, value: object, where: str) -> object:
        """The value of a TOML ``value``, which stood at ``where``.

        :raises ~tilert_stream.errors.ConfigError: its type is another, or it is out of range.
        """
        if not self.repeated:
            return self._typed(value, where)
        entries = cast("list[object]", value) if isinstance(value, list) else [value]
        return tuple(self._typed(entry, where) for entry in entries)

    def _typed(self, value: object, where: str) -> object:
        wrong = self._wrong(value, where)
        if isinstance(value, str) and self.type not in (int, float, bool):
            return self._value(value, where)
        if self.type is StagePlacement and isinstance(value, dict):
            return _placement(cast("dict[str, object]", value), where)
        # A TOML bool is a Python int.
        if isinstance(value, bool) and self.type is bool:
            return value
        if isinstance(value, int | float) and not isinstance(value, bool):
            if self.type is float:
                return self._in_range(float(value), value, where)
            if self.type is int and isinstance(value, int):
                return self._in_range(value, value, where)
        raise wrong

    def _value(self, text: str, where: str) -> object:
        if self.choices:
            if text not in self.choices:
                raise self._wrong(text, where)
            return text
        try:
            return self._in_range(self._converted(text), text, where)
        except ValueError:
            raise self._wrong(text, where) from None

    def _converted(self, text: str) -> object:
        if self.type is bool:
            if text.lower() not in _TRUE + _FALSE:
                raise ValueError(text)
            return text.lower() in _TRUE
        if issubclass(self.type, StagePlacement):
            return StagePlacement.parse(text)
        if not text:
            raise ValueError(text)
        return self.type(text)

    def _in_range(self, value: object, given: object, where: str) -> object:
        if not self.option.admits(value):
            raise self._wrong(given, where)
        return value

    def _wrong(self, value: object, where: str) -> ConfigError:
        shown = "a value that is not shown" if self.option.secret else repr(value)
        return ConfigError(f"{where} is {shown}; it must be {self.needs}.", param=self.key)


def option_specs(config: type[Any]) -> tuple[OptionSpec, ...]:
    """The options of a configuration class, in the order of its fields."""
    hints = get_type_hints(config, include_extras=True)
    return tuple(_spec(field, hints[field.name]) for field in fields(config))


def _spec(field: Field[Any], hint: Any) -> OptionSpec:
    kind, option = get_args(hint)
    repeated = get_origin(kind) is tuple
    if repeated:
        kind = get_args(kind)[0]
    elif get_origin(kind) in (Union, types.UnionType):
        (kind,) = (each for each in get_args(kind) if each is not type(None))
    return OptionSpec(
        name=field.name,
        type=str if get_origin(kind) is Literal else kind,
        hint=kind,
        repeated=repeated,
        option=option,
        default=None if field.default is MISSING else field.default,
    )


def _placement(table: dict[str, object], where: str) -> StagePlacement:
    places = [key for key in ("after", "before", "replace") if key in table]
    known = {"use", "after", "before", "replace"}
    if (
        "use" not in table
        or len(places) != 1
        or not table.keys() <= known
        or not all(isinstance(value, str) and value for value in table.values())
    ):
        raise ConfigError(
            f"{where} has {table!r}; each needs use = 'module:attr' and one of after, before or"
            " replace = 'STAGE', all text.",
            param="stages",
        )
    return StagePlacement.parse(f"{table['use']}@{places[0]}={table[places[0]]}")
