"""A tool in, how its call is written out: the right side of a rule in llguidance's Lark.

A schema inside of it says by ``$comment`` which field of the request it comes from: whoever finds
it at fault names that.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tilert_stream.events import Tool

__all__ = ("json_call_rule", "tagged_call_rule")


def json_call_rule(tool: Tool) -> str:
    """Hermes' calls: an object with the name and the arguments."""
    name = json.dumps(tool.name, ensure_ascii=False)
    head = _literal('<tool_call>\n{"name": ' + name + ', "arguments": ')
    arguments = _json(tool.parameters or {"type": "object"}, tool.param)
    return " ".join((head, arguments, _literal("}\n</tool_call>")))


def tagged_call_rule(tool: Tool) -> str:
    """GLM's calls: a tag for each key and value, in the schema's order.

    A text is written as it is, without ``</``; anything else is JSON.
    """
    parts = [_literal(f"<tool_call>{tool.name}")]
    required = tool.parameters.get("required")
    needed = cast("list[object]", required) if isinstance(required, list) else []
    for key, schema in _objects(tool.parameters.get("properties")).items():
        begin = _literal(f"<arg_key>{key}</arg_key><arg_value>")
        value = _value(schema, f"{tool.param}.properties.{key}")
        pair = f"{begin} {value} {_literal('</arg_value>')}"
        parts.append(pair if key in needed else f"({pair})?")
    return " ".join((*parts, _literal("</tool_call>")))


def _value(schema: Mapping[str, object], param: str) -> str:
    choices = schema.get("enum")
    if isinstance(choices, list) and choices:
        words = cast("list[object]", choices)
        written = [each if isinstance(each, str) else json.dumps(each) for each in words]
        return "(" + " | ".join(map(_literal, written)) + ")"
    return r"/([^<]|<[^\/])*/" if schema.get("type") == "string" else _json(schema, param)


def _objects(value: object) -> dict[str, Mapping[str, object]]:
    members = cast("dict[str, object]", value) if isinstance(value, dict) else {}
    return {
        name: cast("Mapping[str, object]", part) if isinstance(part, dict) else {}
        for name, part in members.items()
    }


def _json(schema: Mapping[str, object], param: str) -> str:
    written = {"x-guidance": {"whitespace_flexible": False}} | dict(schema) | {"$comment": param}
    return "%json " + json.dumps(written)


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
