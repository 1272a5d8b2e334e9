"""A request's body: ASGI messages in, bytes out, bounded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import BodyTooLarge, Cancelled, InvalidRequest

if TYPE_CHECKING:
    from starlette.types import Receive, Scope

__all__ = ("read_body",)


async def read_body(scope: Scope, receive: Receive, limit: int) -> bytes:
    """Read the whole body.

    :param limit: bytes.
    :raises ~tilert_stream.errors.BodyTooLarge: it is longer; by its Content-Length, before any of
        it is read.
    :raises ~tilert_stream.errors.Cancelled: the client left before its end.
    """
    declared = next((value for name, value in scope["headers"] if name == b"content-length"), None)
    if declared is not None:
        if not declared.isdigit():
            raise InvalidRequest(f"Content-Length is {declared!r}; it must be a number")
        if len(declared) > 18 or int(declared) > limit:
            raise _too_large(limit, declared.decode())
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Cancelled("the client left before its request was complete")
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise _too_large(limit, f"more than {limit}")
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


def _too_large(limit: int, size: str) -> BodyTooLarge:
    return BodyTooLarge(f"the body has {size} bytes, this server takes {limit} (max_body_bytes)")
