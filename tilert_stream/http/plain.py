"""Plain requests, which are most: a parsed head in, how much of HTTP it leaves out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import h11

__all__ = ("is_plain", "plain_length")

_UNUSUAL: Final = frozenset({b"HEAD", b"CONNECT"})
_HOP_BY_HOP: Final = frozenset({b"connection", b"expect", b"upgrade"})
_FATES: Final = frozenset({b"keep-alive", b"close"})


def is_plain(request: h11.Request) -> bool:
    """Whether h11 need not know of its answer: nothing is asked of the connection but its end."""
    if request.http_version != b"1.1" or request.method in _UNUSUAL:
        return False
    return all(
        name not in _HOP_BY_HOP or (name == b"connection" and value.lower() in _FATES)
        for name, value in request.headers
    )


def plain_length(request: h11.Request) -> int | None:
    """The length of its body, where h11 need not know of that either; None: where it must.

    That a body is not too long, nor in chunks as well, has been checked with the head.
    """
    if not is_plain(request):
        return None
    length: int | None = None
    for name, value in request.headers:
        if name == b"content-length":
            length = int(value)
        elif name == b"transfer-encoding":
            return None
    return length
