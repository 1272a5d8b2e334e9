"""A value that a client sent in, a few words on it out, for an error message."""

from __future__ import annotations

from typing import Final, cast

import orjson

__all__ = ("describe",)

ECHO_MAX: Final = 60
"""Characters of a client's value that a message repeats."""


def describe(value: object) -> str:
    """``value`` as JSON, cut to ``ECHO_MAX`` characters; of lists and objects only the size.

    Never looks inside: a body may nest deeper than any recursion goes.
    """
    if isinstance(value, list):
        return f"a list of length {len(cast('list[object]', value))}"
    if isinstance(value, dict):
        return f"an object of size {len(cast('dict[str, object]', value))}"
    if isinstance(value, str) and len(value) > ECHO_MAX:
        return f"{orjson.dumps(value[:ECHO_MAX]).decode()}… ({len(value)} characters)"
    return orjson.dumps(value).decode()
