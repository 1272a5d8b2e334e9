"""What one option is: how it is shown, which values it takes, and the check that all share."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal, TypeAlias, get_args, get_type_hints

from ..errors import ConfigError

__all__ = ("Option", "Options", "StagePlacement")

Where: TypeAlias = Literal["after", "before", "replace"]


@dataclass(frozen=True, slots=True)
class Option:
    """How an option is shown, and which values it takes."""

    group: str
    """The panel of ``--help`` that it stands in."""
    help: str
    default: str | None = None
    """The default in words, where the field's own value does not say it."""
    least: float | None = None
    most: float | None = None
    singular: str | None = None
    """The option's name, where it can be given several times."""
    negative: str | None = None
    """The flag of a switch's other side, where that is not the option's name with ``no-``."""
    secret: bool = False
    """The value is never printed."""

    def range(self) -> str:
        """The values it takes, in words; empty where every value of its type will do."""
        if self.least is not None and self.most is not None:
            return f" from {self.least:g} to {self.most:g}"
        if self.least is not None:
            return f" of {self.least:g} or more"
        return ""

    def admits(self, value: object) -> bool:
        """Whether ``value``, of the field's type, is in the range. NaN never is."""
        if not isinstance(value, int | float):
            return True
        return (self.least is None or value >= self.least) and (
            self.most is None or value <= self.most
        )


@dataclass(frozen=True, slots=True)
class StagePlacement:
    """A stage of the operator's own, and where it goes in the pipeline."""

    use: str
    """A registered name or ``"module:attr"``."""
    where: Where
    anchor: str
    """The name of the stage that it is placed after, before, or instead of."""

    @classmethod
    def parse(cls, text: str) -> StagePlacement:
        """Read ``module:attr@after=detokenize``.

        :raises ValueError: it has another form.
        """
        use, _, place = text.rpartition("@")
        where, _, anchor = place.partition("=")
        for known in get_args(Where):
            if use and anchor and where == known:
                return cls(use, known, anchor)
        raise ValueError(text)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Base of everything whose fields are options.

    :raises ~tilert_stream.errors.ConfigError: a value is out of its range.
    """

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self), include_extras=True)
        for name in (each.name for each in fields(self)):
            option: Option = hints[name].__metadata__[0]
            value: object = getattr(self, name)
            if not option.admits(value):
                raise ConfigError(
                    f"{name} is {value}; it must be a number{option.range()}.", param=name
                )
