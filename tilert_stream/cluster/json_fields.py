"""Values of a node's JSON, checked on the way in; ``ValueError`` says which is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ("TOKEN_MAX", "as_list", "as_object", "token_id", "whole")

TOKEN_MAX: Final = 2**31 - 1
"""Engines keep ids in 32 bits."""


def as_object(value: object, name: str) -> dict[str, object]:
    """``value``, which must be a JSON object.

    :raises ValueError: naming ``name``.
    """
    if not isinstance(value, dict):
        raise ValueError(f"{name} is {_kind(value)}; it must be an object")  # noqa: TRY004 - every fault of a peer's JSON is one kind of error
    return cast("dict[str, object]", value)


def as_list(value: object, name: str, *, least: int = 0) -> list[object]:
    """``value``, which must be a JSON list of at least ``least`` items.

    :raises ValueError: naming ``name``.
    """
    if not isinstance(value, list):
        raise ValueError(f"{name} is {_kind(value)}; it must be a list")  # noqa: TRY004 - as above
    items = cast("list[object]", value)
    if len(items) < least:
        raise ValueError(f"{name} has {len(items)} items; it needs {least}")
    return items


def token_id(value: object, name: str) -> int:
    """``value``, which must be a token id.

    :raises ValueError: naming ``name``.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= TOKEN_MAX:
        shown = value if isinstance(value, int) else _kind(value)
        raise ValueError(f"{name} is {shown}; it must be a token id, from 0 to {TOKEN_MAX}")
    return value


def _kind(value: object) -> str:
    return "null" if value is None else _KINDS.get(type(value), "a number")


_KINDS: Final[Mapping[type[object], str]] = {
    dict: "an object",
    list: "a list",
    str: "a string",
    bool: "a truth value",
}


def whole(value: object) -> int:
    """``value`` if it is an integer; 0 otherwise."""
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
