"""A request: method, target, headers and body in, its bytes out."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

import h11

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .origin import Origin

__all__ = ("IDEMPOTENT", "Request", "make_request")

IDEMPOTENT: Final = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE"})
"""RFC 9110, 9.2.2."""


class Request(NamedTuple):
    """A request, checked and framed."""

    head: h11.Request
    """What h11 is told of it: how an answer is framed depends on the method alone."""
    data: bytes
    """All of its bytes."""


def make_request(
    origin: Origin, method: str, target: str, headers: Sequence[tuple[str, str]], body: bytes
) -> Request:
    """A request, its headers checked.

    :param headers: besides ``Host`` and ``Content-Length``.
    """
    head, rendered = _head(origin, method, target, tuple(headers))
    if body or method not in IDEMPOTENT:
        return Request(head, b"%bcontent-length: %d\r\n\r\n%b" % (rendered, len(body), body))
    return Request(head, rendered + b"\r\n")


@lru_cache(maxsize=256)
def _head(
    origin: Origin, method: str, target: str, headers: tuple[tuple[str, str], ...]
) -> tuple[h11.Request, bytes]:
    """A request's head, checked, and its bytes up to where its last header ends.

    A router asks the same few things again and again: checking each header once is enough.
    """
    head = h11.Request(
        method=method, target=origin.prefix + target, headers=[("host", origin.netloc), *headers]
    )
    rendered = h11.Connection(h11.CLIENT).send(head)
    return head, rendered.removesuffix(b"\r\n")
