"""JSON of a stranger: bytes in, values of checked kind out, None where they are not there."""

from __future__ import annotations

from typing import cast

import orjson

__all__ = ("at", "items", "parsed", "text_at", "whole")


def parsed(data: bytes | bytearray) -> object:
    """The JSON value; None where it is none."""
    try:
        return cast("object", orjson.loads(data))
    except orjson.JSONDecodeError:
        return None


def at(value: object, *path: str | int) -> object:
    """The value at a path of names and positions; None where it ends early."""
    for step in path:
        if isinstance(step, str) and isinstance(value, dict):
            value = cast("dict[str, object]", value).get(step)
        elif isinstance(step, int) and isinstance(value, list):
            members = cast("list[object]", value)
            value = members[step] if step < len(members) else None
        else:
            return None
    return value


def items(value: object, *path: str | int) -> list[object]:
    """The list at a path; empty where there is none."""
    found = at(value, *path)
    return cast("list[object]", found) if isinstance(found, list) else []


def text_at(value: object, *path: str | int) -> str:
    """The string at a path; empty where there is none."""
    found = at(value, *path)
    return found if isinstance(found, str) else ""


def whole(value: object) -> bool:
    """Whether it is an integer: ``true`` is none."""
    return isinstance(value, int) and not isinstance(value, bool)
