"""Reads the fields of one JSON object strictly: what is missing or wrong is named and shown."""

from __future__ import annotations

import base64
import reprlib
from typing import TYPE_CHECKING, Final, NoReturn, cast

from .errors import MalformedMessage

if TYPE_CHECKING:
    from .frames import JSONObject

__all__ = ("MAX_INTEGER", "MAX_NAME", "MAX_TEXT", "Fields", "shown")

MAX_INTEGER: Final = 2**53 - 1
"""The largest integer that every JSON reader keeps exact (RFC 8259, section 6)."""
MAX_NAME: Final = 256
MAX_TEXT: Final = 4096

_short: Final = reprlib.Repr()
_short.maxstring = _short.maxother = _short.maxlong = 80
_short.maxlevel = 2


def shown(value: object) -> str:
    """``value`` for an error message: on one line, and short whatever it is."""
    return _short.repr(value)


class Fields:
    """One object of a message, called ``name`` in errors. Fields that nobody asks for are ignored.

    Every reader raises ``MalformedMessage``, with the field's dotted name as ``param``.
    """

    __slots__ = ("_content", "name")

    def __init__(self, name: str, content: JSONObject) -> None:
        self.name = name
        self._content = content

    def has(self, field: str) -> bool:
        """Whether the field is there and not null."""
        return self._content.get(field) is not None

    def refuse(self, field: str, needed: str) -> NoReturn:
        """Refuse the value of ``field``.

        :raises MalformedMessage: always.
        """
        path = f"{self.name}.{field}"
        if field not in self._content:
            raise MalformedMessage(f"{path} is missing; {needed} is needed", param=path)
        got = shown(self._content[field])
        raise MalformedMessage(f"{path} is {got}; {needed} is needed", param=path)

    def text(self, field: str) -> str:
        """A name or an id: 1 to 256 printable characters, so that it can stand in a log line."""
        value = self._content.get(field)
        if not isinstance(value, str) or not 1 <= len(value) <= MAX_NAME or not value.isprintable():
            self.refuse(field, f"a text of 1 to {MAX_NAME} printable characters")
        return value

    def prose(self, field: str) -> str:
        """A sentence for people: cut to 4096 characters, what is not printable replaced."""
        value = self._content.get(field)
        if not isinstance(value, str):
            self.refuse(field, "a text")
        return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in value)[
            :MAX_TEXT
        ]

    def integer(self, field: str, *, least: int = 0, most: int = MAX_INTEGER) -> int:
        """An integer from ``least`` to ``most``."""
        value = self._content.get(field)
        # bool is a subclass of int, and true is no number.
        if type(value) is not int or not least <= value <= most:
            bounds = f"of {least} or more" if most == MAX_INTEGER else f"from {least} to {most}"
            self.refuse(field, f"an integer {bounds}")
        return value

    def seconds(self, field: str) -> float:
        """A time of more than 0 and at most 86400 seconds."""
        value = self._content.get(field)
        if type(value) not in (int, float) or not 0 < cast("float", value) <= 86400:
            self.refuse(field, "a number of seconds, more than 0 and at most 86400,")
        return float(cast("float", value))

    def flag(self, field: str) -> bool:
        """True or false."""
        value = self._content.get(field)
        if not isinstance(value, bool):
            self.refuse(field, "true or false")
        return value

    def blob(self, field: str) -> bytes:
        """Bytes, as base64 (RFC 4648, section 4)."""
        value = self._content.get(field)
        if not isinstance(value, str):
            self.refuse(field, "base64")
        try:
            return base64.b64decode(value, validate=True)
        except ValueError:
            self.refuse(field, "base64")

    def hexadecimal(self, field: str, nbytes: int) -> bytes:
        """Exactly ``nbytes`` bytes, as lowercase hex digits."""
        value = self._content.get(field)
        digits = set("0123456789abcdef")
        if not isinstance(value, str) or len(value) != 2 * nbytes or not digits.issuperset(value):
            self.refuse(field, f"{2 * nbytes} hex digits")
        return bytes.fromhex(value)

    def nested(self, field: str) -> Fields:
        """A nested object."""
        value = self._content.get(field)
        if not isinstance(value, dict):
            self.refuse(field, "an object")
        return Fields(f"{self.name}.{field}", cast("JSONObject", value))

    def scalars(self, field: str) -> dict[str, str | int | bool]:
        """A nested object of at most 256 fields, each a text as ``text``, an integer or a flag."""
        content = self.mapping(field)
        if not 1 <= len(content) <= MAX_NAME:
            self.refuse(field, f"an object of 1 to {MAX_NAME} fields")
        return {name: self.nested(field).scalar(name) for name in content}

    def scalar(self, field: str) -> str | int | bool:
        """A text as ``text`` takes it, an integer of 0 or more, or true or false."""
        value = self._content.get(field)
        if isinstance(value, bool):
            return value
        return self.integer(field) if isinstance(value, int) else self.text(field)

    def mapping(self, field: str) -> JSONObject:
        """A nested object that is passed on as it is."""
        self.nested(field)
        return cast("JSONObject", self._content[field])

    def objects(self, field: str) -> list[Fields]:
        """An array of at most 256 objects."""
        items = self._array(field, "objects")
        if not all(isinstance(item, dict) for item in items):
            self.refuse(field, "an array of objects")
        return [
            Fields(f"{self.name}.{field}[{index}]", cast("JSONObject", item))
            for index, item in enumerate(items)
        ]

    def integers(self, field: str) -> tuple[int, ...]:
        """An array of at most 256 integers of 0 or more."""
        items = self._array(field, "integers of 0 or more")
        found = [item for item in items if type(item) is int and 0 <= item <= MAX_INTEGER]
        if len(found) != len(items):
            self.refuse(field, "an array of integers of 0 or more")
        return tuple(found)

    def _array(self, field: str, of: str) -> list[object]:
        value = self._content.get(field)
        if not isinstance(value, list) or len(cast("list[object]", value)) > MAX_NAME:
            self.refuse(field, f"an array of at most {MAX_NAME} {of}")
        return cast("list[object]", value)
