"""A grammar that cannot be followed in, the field of the request that is at fault out.

A JSON schema inside of another grammar says by ``$comment`` which field it comes from.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final, cast

from tilert_stream.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ("fault_of",)

MESSAGE_MAX: Final = 500
"""Characters of the library's own words."""
_TOOL: Final = re.compile(r"tools\[[0-9]+\]\.function\.parameters")
_EMBEDDED: Final = re.compile(r"%json\s+(?=\{)")
_MAPS: Final = ("properties", "$defs", "definitions", "patternProperties")
_SINGLE: Final = ("items", "additionalProperties", "additionalItems", "contains")
_LISTS: Final = ("anyOf", "oneOf", "allOf", "prefixItems")


def fault_of(grammar: str, param: str, message: str) -> InvalidRequest:
    """The error that names the innermost schema that fails by itself.

    :param param: the field that the grammar came from.
    :param message: what the library says of the whole.
    """
    # Of one that compiles, the library adds its whole state below the first line.
    message = message.partition("\n<state>")[0]
    parts = cast("dict[str, list[dict[str, object]]]", json.loads(grammar))["grammars"]
    schema, source = _object(parts[0].get("json_schema")), parts[0].get("lark_grammar")
    if schema is not None:
        param, message = _innermost(schema, param, message)
    else:
        for embedded in _embedded(source if isinstance(source, str) else ""):
            said = _validate(embedded)
            if said:
                param, message = _innermost(embedded, _place(embedded, param), said)
                break
    return InvalidRequest(
        f"{param} cannot be followed: {message[:MESSAGE_MAX]}; change it, or leave it out",
        param=param,
    )


def _embedded(source: str) -> Iterator[dict[str, object]]:
    """The schemas inside of a grammar in Lark."""
    for begin in _EMBEDDED.finditer(source):
        try:
            value: object = json.JSONDecoder().raw_decode(source, begin.end())[0]
        except json.JSONDecodeError:
            continue  # it only looks like one, inside of a string
        schema = _object(value)
        if schema is not None:
            yield schema


def _place(schema: dict[str, object], param: str) -> str:
    comment = schema.get("$comment")
    return comment if isinstance(comment, str) and _TOOL.match(comment) else param


def _innermost(root: dict[str, object], place: str, message: str) -> tuple[str, str]:
    schema: dict[str, object] | None = root
    while schema is not None:
        inside, schema = schema, None
        for name, part in _parts(inside):
            # Its references may point into the whole's definitions.
            alone = dict(part)
            if not name.startswith((".$defs", ".definitions")):
                alone |= {key: root[key] for key in ("$defs", "definitions") if key in root}
            said = _validate(alone)
            if said:
                schema, place, message = part, place + name, said
                break
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
