"""A request's body: ASGI messages in, bytes out, bounded; bytes in, a parsed request out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar, TypeVarTuple

from anyio import to_thread

from ..errors import BodyTooLarge, Cancelled, InvalidRequest, UnsupportedMediaType
from ..openai.describe import describe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Unpack

    from starlette.types import Receive, Scope

    from ..events import GenerateRequest

__all__ = ("check_grammar", "check_media_type", "parse_body", "read_body")

Parsed = TypeVar("Parsed")
Rest = TypeVarTuple("Rest")

PARSED_IN_A_THREAD: Final = 32 * 1024
"""Bytes of a body from which on tokenizing it would hold up every other stream for milliseconds."""


def check_media_type(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Refuse a body that says it is no plain JSON; one that says nothing is read as such.

    A page on another site can make a browser send text or a form without asking first; JSON it
    cannot.

    :raises ~tilert_stream.errors.UnsupportedMediaType: naming the header.
    """
    for name, value in headers:
        if name == b"content-type":
            kind = value.partition(b";")[0].strip().lower()
            if kind and kind != b"application/json" and not kind.endswith(b"+json"):
                shown = describe(kind.decode("latin-1"))
                raise UnsupportedMediaType(
                    f"Content-Type is {shown}; send 'Content-Type: application/json'",
                    param="Content-Type",
                )
        elif name == b"content-encoding" and value.strip().lower() not in (b"", b"identity"):
            shown = describe(value.decode("latin-1"))
            raise UnsupportedMediaType(
                f"Content-Encoding is {shown}; a body is read as it is: send it uncompressed",
                param="Content-Encoding",
            )


async def read_body(scope: Scope, receive: Receive, limit: int) -> bytes:
    """Read the whole body.

    :param limit: bytes.
    :raises ~tilert_stream.errors.BodyTooLarge: it is longer; by its Content-Length, before any of
        it is read.
    :raises ~tilert_stream.errors.Cancelled: the client left before its end.
    """
    for name, declared in scope["headers"]:
        if name == b"content-length":
            if not declared.isdigit():
                raise InvalidRequest(f"Content-Length is {declared!r}; it must be a number")
            if len(declared) > 18 or int(declared) > limit:
                raise _too_large(limit, declared.decode())
            break
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


async def parse_body(
    parse: Callable[[bytes, Unpack[Rest]], Parsed], body: bytes, *rest: *Rest
) -> Parsed:
    """``parse(body, *rest)``, in a thread if the body is long.

    A checkpoint only then: a short request need not wait for a turn of the loop.
    """
    if len(body) < PARSED_IN_A_THREAD or _weight(body) < PARSED_IN_A_THREAD:
        return parse(body, *rest)
    return await to_thread.run_sync(parse, body, *rest)


def _weight(body: bytes) -> int:
    """How long ``body`` takes, in bytes of text: a prompt of ids is only read."""
    text = len(body.translate(None, b"0123456789, "))
    return text + (len(body) - text) // 4


async def check_grammar(request: GenerateRequest, check: Callable[[str, str], None] | None) -> None:
    """Compile the grammar that ``request``'s answer is held to, in a thread.

    A checkpoint only where there is one.

    :param check: what compiles it, and names the field it came from where it cannot be followed;
        None: nothing here does.
    :raises ~tilert_stream.errors.InvalidRequest: it cannot be followed.
    """
    sampling = request.sampling
    if sampling.grammar is not None and check is not None:
        await to_thread.run_sync(check, sampling.grammar, sampling.grammar_param)


def _too_large(limit: int, size: str) -> BodyTooLarge:
    return BodyTooLarge(f"the body has {size} bytes, this server takes {limit} (max_body_bytes)")
