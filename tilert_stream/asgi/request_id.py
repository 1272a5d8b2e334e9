"""A request's id: made here for one that is refused before it has any, told to the server early."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from uuid import uuid4

if TYPE_CHECKING:
    from starlette.types import Scope

    from .response import Headers

__all__ = ("id_header", "name_request")

NAME_REQUEST: Final = "tilert_stream.name_request"
"""Our own server's extension: its access log has the id also where nobody is left to answer."""


def id_header(request_id: str | None = None) -> Headers:
    """``x-request-id``, so that an answer and a log line find each other.

    :param request_id: None makes one.
    """
    return ((b"x-request-id", (request_id or uuid4().hex).encode()),)


def name_request(scope: Scope, request_id: str) -> None:
    """Tell the server, if it wants to know."""
    name = scope.get("extensions", {}).get(NAME_REQUEST)
    if name is not None:
        name(request_id)
