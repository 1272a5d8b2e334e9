"""What a request's head asks of HTTP: most ask for nothing that h11 would have to know of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    import h11

__all__ = ("Outline", "outline_of")

_UNUSUAL: Final = frozenset({b"HEAD", b"CONNECT"})


class Outline(NamedTuple):
    """What is left of a head once the app has its own view of it."""

    plain: bool
    """h11 need not know of the answer: nothing is asked of the connection but its end."""
    closes: bool
    """The client wants the connection to end with the answer."""
    length: int | None
    """Bytes of the body, where h11 need not know of that either; None: where it must."""


def outline_of(request: h11.Request) -> Outline:
    """Read it off a head that has been checked: a body is not too long, nor in chunks as well."""
    plain = request.http_version == b"1.1" and request.method not in _UNUSUAL
    closes = chunked = False
    length: int | None = None
    for name, value in request.headers:
        if name == b"content-length":
            length = int(value)
        elif name == b"connection":
            fate = value.lower()
            closes = closes or fate == b"close"
            plain = plain and fate in (b"close", b"keep-alive")
        elif name in (b"expect", b"upgrade"):
            plain = False
        elif name == b"transfer-encoding":
            chunked = True
    return Outline(plain, closes, length if plain and not chunked else None)
