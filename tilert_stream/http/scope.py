"""A request head in, the ASGI scope of it out."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote

from .errors import MalformedRequest

if TYPE_CHECKING:
    import h11
    from starlette.types import Scope

__all__ = ("Address", "http_scope")

Address = tuple[str, int | None]

ASGI_VERSION = {"version": "3.0", "spec_version": "2.3"}
"""2.3, not 2.4: from 2.4 on Starlette no longer listens for the client while it streams, and a
generator that waits for its next token would go on for nobody."""


def http_scope(
    request: h11.Request,
    *,
    client: Address | None,
    server: Address | None,
    root_path: str,
    state: dict[str, object] | None,
) -> Scope:
    """Make the scope of one request.

    :param state: what the app's lifespan has left for requests, copied; None: no lifespan.
    :raises MalformedRequest: the target is neither a path, an absolute URL nor ``*``.
    """
    target = request.target
    if not target.startswith(b"/") and target != b"*":
        scheme, separator, rest = target.partition(b"://")
        if not separator or scheme.lower() not in (b"http", b"https"):
            raise MalformedRequest("The request target is neither a path nor an http URL.")
        authority = rest.partition(b"/")[0].partition(b"?")[0]
        target = rest[len(authority) :]
        if not target.startswith(b"/"):
            target = b"/" + target
    raw_path, _, query = target.partition(b"?")
    scope: Scope = {
        "type": "http",
        "asgi": ASGI_VERSION,
        "http_version": request.http_version.decode("ascii"),
        "method": request.method.decode("ascii"),
        "scheme": "http",
        "path": root_path + unquote(raw_path.decode("ascii")),
        "raw_path": root_path.encode("ascii") + raw_path,
        "query_string": query,
        "root_path": root_path,
        "headers": list(request.headers),
        "client": client,
        "server": server,
        "extensions": {},
    }
    if state is not None:
        scope["state"] = dict(state)
    return scope
