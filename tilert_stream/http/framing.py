"""How a client finds the end of an answer's body (RFC 9112, 6.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import h11

__all__ = ("Framing", "choose_framing")

Framing = Literal["chunked", "length", "close", "none"]
"""By chunks, by Content-Length, by the end of the connection; or there is no body."""


def choose_framing(response: h11.Response, *, bodiless: bool, chunks_allowed: bool) -> Framing:
    """Name the framing that h11 gives to ``response``.

    :param bodiless: the request was HEAD.
    :param chunks_allowed: the client speaks HTTP/1.1.
    """
    if bodiless or response.status_code in (204, 304):
        return "none"
    names = {name for name, _ in response.headers}
    if b"content-length" in names and b"transfer-encoding" not in names:
        return "length"
    return "chunked" if chunks_allowed else "close"
