"""What a request's headers ask for, beside its body: its name, and where its time went."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    HeaderList = Iterable[tuple[bytes, bytes]]

__all__ = ("ID_MAX", "client_request_id", "wants_timing")

ID_MAX: Final = 128
"""Characters of a client's ``x-request-id`` that are echoed."""

_NO_ID: Final = re.compile(rb"[^A-Za-z0-9._:/+=@-]+")


def client_request_id(headers: HeaderList) -> str | None:
    """The client's own ``x-request-id``, which is echoed; None if it sent none.

    It is a name and nothing more: ours is another one, since nobody sees to it that clients' are
    unique. Of its characters only letters, digits and ``._:/+=@-`` are kept.
    """
    for name, value in headers:
        if name == b"x-request-id":
            return _NO_ID.sub(b"", value)[:ID_MAX].decode() or None
    return None


def wants_timing(headers: HeaderList) -> bool:
    """Whether the client has sent ``x-timing: 1``."""
    return (b"x-timing", b"1") in headers
