"""How a client finds the end of an answer's body (RFC 9112, 6.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Container

__all__ = ("Framing", "choose_framing")

Framing = Literal["chunked", "length", "close", "none"]
"""By chunks, by Content-Length, by the end of the connection; or there is no body."""


def choose_framing(
    status: int, names: Container[bytes], *, bodiless: bool, chunks_allowed: bool
) -> Framing:
    """Name the framing that h11 gives to an answer.

    :param names: of its headers, in lower case.
    :param bodiless: the request was HEAD.
    :param chunks_allowed: the client speaks HTTP/1.1.
    """
    if bodiless or status in (204, 304):
        return "none"
    if b"content-length" in names and b"transfer-encoding" not in names:
        return "length"
    return "chunked" if chunks_allowed else "close"
