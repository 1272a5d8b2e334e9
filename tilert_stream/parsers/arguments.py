"""Arguments that a model writes one by one, as text: into one JSON object, as they come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

import orjson

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tilert_stream.events import Tool

    from .markers import Markers
    from .reader import Reading
    from .sections import SectionReader

__all__ = ("ArgumentWriter", "parameter_types")

_TYPES: Final[Mapping[type, tuple[str, ...]]] = {
    str: ("string",),
    bool: ("boolean",),
    int: ("integer", "number"),
    float: ("number",),
    list: ("array",),
    dict: ("object",),
    type(None): ("null",),
}


class ArgumentWriter:
    """The object of one call: ``{"a": 1`` … ``}``, each fragment leaving when it is certain.

    :param tools: their schemas tell texts from numbers, where the model's own format does not.
    :param name: the function that is called.
    """

    __slots__ = ("_parameters", "_reader", "_separator")

    def __init__(self, reader: SectionReader, tools: tuple[Tool, ...], name: str) -> None:
        self._reader = reader
        self._parameters: Mapping[str, object] = next(
            (tool.parameters for tool in tools if tool.name == name), dict[str, object]()
        )
        self._separator = "{"
        reader.begin_call(name)

    def read(self, key: str, end: Markers, *, is_text: bool | None = None) -> Reading[None]:
        """Read the value of ``key`` up to ``end``. A text leaves as it comes.

        :param is_text: what the format says of it; None: it does not say.
        """
        self._emit(f"{self._separator}{_dumps(key)}: ", self._reader.at)
        self._separator = ", "
        types = parameter_types(self._parameters, key)
        if is_text or (is_text is None and types == {"string"}):
            self._emit('"', self._reader.at)
            yield from self._reader.stream(
                end, lambda text, begin: self._emit(_dumps(text)[1:-1], begin)
            )
            self._emit('"', self._reader.at)
            return
        parts: list[str] = []
        yield from self._reader.stream(end, lambda text, _begin: parts.append(text))
        self._emit(_as_json("".join(parts), types), self._reader.at)

    def end(self) -> None:
        """The call is complete."""
        self._emit("{}" if self._separator == "{" else "}", self._reader.at)
        self._reader.end_call()

    def _emit(self, text: str, begin: int) -> None:
        self._reader.emit("tool_call", text, begin)


def parameter_types(schema: Mapping[str, object], key: str) -> set[str]:
    """The JSON types that ``schema``, an object's, allows for its member ``key``; empty: any."""
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return set()
    return _types(cast("dict[str, object]", properties).get(key))


def _types(schema: object) -> set[str]:
    if not isinstance(schema, dict):
        return set()
    members = cast("dict[str, object]", schema)
    declared = members.get("type")
    if isinstance(declared, str):
        return {declared}
    if isinstance(declared, list):
        return {name for name in cast("list[object]", declared) if isinstance(name, str)}
    choices = members.get("enum")
    if isinstance(choices, list):
        return {name for value in cast("list[object]", choices) for name in _TYPES[type(value)]}
    return set()


def _as_json(text: str, types: set[str]) -> str:
    """``text`` if it is JSON of one of ``types``; else as a JSON string."""
    try:
        value: object = orjson.loads(text)
    except ValueError:
        return _dumps(text)
    fits = not types or not types.isdisjoint(_TYPES[type(value)])
    return text.strip() if fits or "string" not in types else _dumps(text)


def _dumps(text: str) -> str:
    return orjson.dumps(text).decode()
