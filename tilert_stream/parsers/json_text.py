"""JSON text that comes piece by piece: strings and values read out of a ``MarkerReader``.

Values go out as the text they are, so that nothing of a number or an escape is changed; only raw
control characters in strings, which models write and JSON forbids, become escapes.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final

import orjson

from .reader import Malformed

if TYPE_CHECKING:
    from collections.abc import Callable

    from .reader import MarkerReader, Reading

__all__ = ("expect", "is_object", "next_character", "read_string", "stream_value")

SPACE: Final = " \n\r\t"
_STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_IN_STRING: Final = re.compile(r'["\\\x00-\x1f]')
_OUTSIDE: Final = re.compile(r'["{}\[\]]|[^\w\s:,.+-]')
_AFTER_WORD: Final = re.compile(r"[\s,}\]<]")


def is_object(text: str) -> bool:
    """Whether ``text`` is a JSON object."""
    try:
        return isinstance(orjson.loads(text), dict)
    except ValueError:
        return False


def next_character(reader: MarkerReader) -> Reading[str]:
    """The next character that is no space, not read yet."""
    yield from reader.skip(SPACE)
    return reader.text[reader.at]


def expect(reader: MarkerReader, character: str) -> Reading[None]:
    """Read ``character``, and the space before it.

    :raises Malformed: another comes.
    """
    if (yield from next_character(reader)) != character:
        raise Malformed
    reader.at += 1


def read_string(reader: MarkerReader) -> Reading[str]:
    """A whole string's value.

    :raises Malformed: there is none.
    """
    if (yield from next_character(reader)) != '"':
        raise Malformed
    while True:
        found = _STRING.match(reader.text, reader.at)
        if found is not None:
            reader.at = found.end()
            try:
                # Not orjson: raw line feeds in strings are forgiven.
                return str(json.loads(found[0], strict=False))
            except ValueError as error:
                raise Malformed from error
        yield from reader.more()


def stream_value(reader: MarkerReader, emit: Callable[[str, int], None]) -> Reading[None]:
    """Emit the text of the next value as it comes.

    :raises Malformed: it can be no JSON any more. That it is valid to the end is not checked.
    """
    if (yield from next_character(reader)) in '"{[':
        yield from _stream_structure(reader, emit)
        return
    while True:
        begin = reader.at
        found = _AFTER_WORD.search(reader.text, begin)
        if found is not None:
            reader.at = found.start()
            emit(reader.text[begin : reader.at], begin)
            return
        yield from reader.more()


def _stream_structure(reader: MarkerReader, emit: Callable[[str, int], None]) -> Reading[None]:
    """An object, a list or a string."""
    structure = _Structure()
    while True:
        begin = reader.at
        text = structure.scan(reader.text, begin)
        reader.at = structure.place
        if text:
            emit(text, begin)
        if structure.wrong:
            raise Malformed
        if structure.complete:
            return
        yield from reader.more()


class _Structure:
    """How deep in a value its text has come."""

    __slots__ = ("_depth", "_escaped", "_in_string", "complete", "place", "wrong")

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self.place = 0
        """Where in the text the last scan stopped."""
        self.complete = False
        self.wrong = False
        """What stands at ``place`` is no JSON."""

    def scan(self, text: str, begin: int) -> str:
        """Go on from ``begin`` to the value's end or the text's; what was read, as it goes out."""
        parts: list[str] = []
        self.place = sent = begin
        while self.place < len(text) and not (self.complete or self.wrong):
            if self._escaped:
                self._escaped = False
                self.place += 1
                continue
            found = (_IN_STRING if self._in_string else _OUTSIDE).search(text, self.place)
            if found is None:
                self.place = len(text)
            elif self._in_string and found[0] not in '"\\':
                parts += (text[sent : found.start()], json.dumps(found[0])[1:-1])
                sent = self.place = found.end()
            else:
                self._step(found)
        return "".join((*parts, text[sent : self.place]))

    def _step(self, found: re.Match[str]) -> None:
        character = found[0]
        self.place = found.end()
        if character == '"':
            self._in_string = not self._in_string
        elif character == "\\":
            self._escaped = self._in_string
            self.wrong = not self._in_string
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1
        else:
            self.wrong = True
        if self.wrong:
            self.place = found.start()
        self.complete = not (self._depth or self._in_string or self.wrong)
