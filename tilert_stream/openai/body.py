"""A request's bytes in, a JSON object out."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import orjson

from ..errors import InvalidRequest
from .describe import describe

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ("parse_object",)


def parse_object(body: bytes) -> Mapping[str, object]:
    """Parse ``body``, which must be one JSON object in UTF-8 (RFC 8259).

    Of a key given twice the last one counts. NaN, Infinity, numbers beyond a double, lone
    surrogates and more than 1,024 levels are no JSON here.

    :raises ~tilert_stream.errors.InvalidRequest: it is not; ``param`` is None, the message gives
        the offset in bytes.
    """
    if not body:
        raise InvalidRequest("the body is empty; it must be a JSON object")
    try:
        value: object = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise _not_json(body, error) from error
    if not isinstance(value, dict):
        raise InvalidRequest(f"the body is {describe(value)}; it must be a JSON object")
    return cast("dict[str, object]", value)


def _not_json(body: bytes, error: orjson.JSONDecodeError) -> InvalidRequest:
    try:
        # orjson counts characters; whoever looks at the wire counts bytes.
        offset = len(body.decode()[: error.pos].encode())
        reason = error.msg
    except UnicodeDecodeError as invalid:
        offset = invalid.start
        reason = "invalid UTF-8"
    return InvalidRequest(f"the body is not valid JSON: {reason} at byte offset {offset}")
