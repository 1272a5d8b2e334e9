"""A request's id: made here for one that is refused before it has any, told to the server early."""

from __future__ import annotations

from os import urandom
from typing import TYPE_CHECKING, Final

from .request_headers import client_request_id

if TYPE_CHECKING:
    from starlette.types import Scope

    from .response import Headers

__all__ = ("answer_id", "id_header", "name_request")

ANSWER_ID: Final = "tilert_stream.answer_id"
NAME_REQUEST: Final = "tilert_stream.name_request"
"""Our own server's extension: its access log has the id also where nobody is left to answer."""


def id_header(request_id: str | None = None) -> Headers:
    """``x-request-id``, so that an answer and a log line find each other.

    :param request_id: None makes one.
    """
    return ((b"x-request-id", (request_id or urandom(16).hex()).encode()),)


def answer_id(scope: Scope) -> str:
    """The id under which a request is refused: the client's own, else one that is made here once.

    It is kept in ``scope``, so that the log line and the answer of a refusal have the same.
    """
    kept: str | None = scope.get(ANSWER_ID)
    if kept is None:
        kept = scope[ANSWER_ID] = client_request_id(scope["headers"]) or urandom(16).hex()
    return kept


def name_request(scope: Scope, request_id: str) -> None:
    """Tell the server, if it wants to know."""
    name = scope.get("extensions", {}).get(NAME_REQUEST)
    if name is not None:
        name(request_id)
