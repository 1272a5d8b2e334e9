"""A JSON schema that cannot be followed in, the part of it that is at fault out."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, cast

from tilert_stream.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ("fault_of",)

MESSAGE_MAX: Final = 500
"""Characters of the library's own words."""
_ROOT: Final = "response_format.json_schema.schema"
_MAPS: Final = ("properties", "$defs", "definitions", "patternProperties")
_SINGLE: Final = ("items", "additionalProperties", "additionalItems", "contains")
_LISTS: Final = ("anyOf", "oneOf", "allOf", "prefixItems")


def fault_of(grammar: str, message: str) -> InvalidRequest:
    """The error that names the innermost schema that fails by itself.

    :param message: what the library says of the whole.
    """
    # Of one that compiles, the library adds its whole state below the first line.
    message = message.partition("\n<state>")[0]
    schema = _schema(grammar)
    if schema is None:
        return InvalidRequest(f"the answer's grammar cannot be followed: {message[:MESSAGE_MAX]}")
    place, message = _innermost(schema, schema, _ROOT, message)
    return InvalidRequest(
        f"{place} cannot be followed: {message[:MESSAGE_MAX]}; change it, or leave it out",
        param=place,
    )


def _schema(grammar: str) -> dict[str, object] | None:
    parts = cast("dict[str, list[dict[str, object]]]", json.loads(grammar))["grammars"]
    return _object(parts[0].get("json_schema"))


def _innermost(
    schema: dict[str, object], root: dict[str, object], place: str, message: str
) -> tuple[str, str]:
    for name, part in _parts(schema):
        # Its references may point into the whole's definitions.
        alone = dict(part)
        if not name.startswith((".$defs", ".definitions")):
            alone |= {key: root[key] for key in ("$defs", "definitions") if key in root}
        said = _validate(alone)
        if said:
            return _innermost(part, root, place + name, said)
    return place, message


def _validate(schema: dict[str, object]) -> str:
    from llguidance import LLMatcher

    return LLMatcher.validate_grammar(json.dumps({"grammars": [{"json_schema": schema}]}))


def _parts(schema: dict[str, object]) -> Iterator[tuple[str, dict[str, object]]]:
    """The schemas directly inside of ``schema``, and where they stand."""
    for key in _MAPS:
        for name, part in (_object(schema.get(key)) or {}).items():
            yield from _named(f".{key}.{name}", part)
    for key in _SINGLE:
        yield from _named(f".{key}", schema.get(key))
    for key in _LISTS:
        given = schema.get(key)
        parts = cast("list[object]", given) if isinstance(given, list) else []
        for index, part in enumerate(parts):
            yield from _named(f".{key}[{index}]", part)


def _named(place: str, value: object) -> Iterator[tuple[str, dict[str, object]]]:
    schema = _object(value)
    if schema is not None:
        yield place, schema


def _object(value: object) -> dict[str, object] | None:
    return cast("dict[str, object]", value) if isinstance(value, dict) else None
