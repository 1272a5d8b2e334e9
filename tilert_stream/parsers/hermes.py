"""Hermes' calls, which Qwen writes too: JSON in ``<tool_call>``.

::

    <tool_call>
    {"name": "weather", "arguments": {"city": "Berlin"}}
    </tool_call>

As the chat templates of Nous Hermes 2 Pro, Qwen2.5 and Qwen3 have it. Members may come in any
order; fragments of ``arguments`` leave as they come wherever ``name`` is first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from .call_rules import json_call_rule
from .format import FormatParser
from .json_text import expect, is_object, next_character, read_string, stream_value
from .reader import Malformed
from .sections import CallMarkers, SectionReader

if TYPE_CHECKING:
    from .reader import Reading

__all__ = ("HERMES", "HermesReader", "JSONCall")


class JSONCall:
    """The arguments of one call, as JSON text; they wait for the call's name."""

    __slots__ = ("_ended", "_named", "_reader", "_text")

    def __init__(self, reader: SectionReader) -> None:
        self._reader = reader
        self._text: list[str] = []
        self._named = False
        self._ended = False

    def name(self, name: str) -> None:
        """The call begins.

        :raises Malformed: it is not the first name, or empty.
        """
        if self._named or not name:
            raise Malformed
        self._named = True
        self._reader.begin_call(name)
        if self._text:
            self._reader.emit("tool_call", "".join(self._text), self._reader.at)
        if self._ended:
            self._reader.end_call()

    def arguments(self, text: str, begin: int) -> None:
        """A fragment.

        :raises Malformed: there were arguments before.
        """
        if self._ended:
            raise Malformed
        self._text.append(text)
        if self._named:
            self._reader.emit("tool_call", text, begin)

    def end_arguments(self) -> None:
        """There are no more.

        :raises Malformed: they are no JSON object.
        """
        if not is_object("".join(self._text)):
            raise Malformed
        self._ended = True
        if self._named:
            self._reader.end_call()

    def end(self) -> None:
        """The call is over; one without arguments has none.

        :raises Malformed: it has no name.
        """
        if not self._named:
            raise Malformed
        if not self._ended:
            self.arguments("{}", self._reader.at)
            self.end_arguments()


class HermesReader(SectionReader):
    """Reads one answer."""

    CALLS = CallMarkers(begin=("<tool_call>",), end=("</tool_call>",))

    def read_call(self, marker: str) -> Reading[None]:
        """A JSON object with ``name`` and ``arguments`` (or ``parameters``)."""
        call = JSONCall(self)
        yield from expect(self, "{")
        while (yield from next_character(self)) != "}":
            key = yield from read_string(self)
            yield from expect(self, ":")
            if key == "name":
                call.name((yield from read_string(self)))
            elif key in ("arguments", "parameters"):
                yield from self._arguments(call)
            else:
                yield from stream_value(self, lambda _text, _begin: None)
            if (yield from next_character(self)) == ",":
                self.at += 1
        self.at += 1
        call.end()

    def _arguments(self, call: JSONCall) -> Reading[None]:
        first = yield from next_character(self)
        if first == "{":
            yield from stream_value(self, call.arguments)
        elif first == '"':
            # The object as text in a string, as OpenAI's API has it.
            text = yield from read_string(self)
            call.arguments(text, self.at)
        else:
            word: list[str] = []
            yield from stream_value(self, lambda text, _begin: word.append(text))
            if "".join(word) != "null":
                raise Malformed
            call.arguments("{}", self.at)
        call.end_arguments()


HERMES: Final = FormatParser(
    "hermes",
    HermesReader,
    # Qwen3-Coder's calls are XML inside of the same marker.
    lambda template: "<tool_call>" in template and "<function=" not in template,
    json_call_rule,
)
