"""A request head in, the ASGI scope of it out; or a refusal."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote

from ..errors import BodyTooLarge
from .errors import HeadersTooLarge, HTTPVersionNotSupported, MalformedRequest, UnsupportedRequest

if TYPE_CHECKING:
    from starlette.types import Scope

    from .request_head import RequestHead
    from .settings import ServerSettings

__all__ = (
    "ASGI_VERSION",
    "NAME_REQUEST",
    "ON_DISCONNECT",
    "SEND_NOW",
    "Address",
    "check_head",
    "http_scope",
)

Address = tuple[str, int | None]

ASGI_VERSION = {"version": "3.0", "spec_version": "2.3"}
"""2.3, not 2.4: from 2.4 on Starlette no longer listens for the client while it streams, and a
generator that waits for its next token would go on for nobody."""

ON_DISCONNECT = "tilert_stream.on_disconnect"
"""The extension by which an app hears of a client's leaving without waiting for it."""

NAME_REQUEST = "tilert_stream.name_request"
"""The extension by which an app says a request's id before its answer does, for the access log of
one that is never answered."""

SEND_NOW = "tilert_stream.send_now"
"""The extension by which an app writes a part of a body without awaiting, as far as it goes."""


def check_head(request: RequestHead, settings: ServerSettings) -> None:
    """Refuse what the server does not do, before any of the body is read.

    :raises ~tilert_stream.errors.TilertStreamError: the answer to it.
    """
    if not request.http_version.startswith(b"1."):
        raise HTTPVersionNotSupported(
            f"HTTP/{request.http_version.decode('ascii')} is not spoken here; use HTTP/1.1."
        )
    if request.method == b"CONNECT":
        raise UnsupportedRequest("CONNECT is not supported: this is no proxy.")
    length: bytes | None = None
    coded = False
    size = len(request.method) + len(request.target)
    for name, value in request.headers:
        size += len(name) + len(value) + 4
        if name == b"content-length":
            length = value
        elif name == b"transfer-encoding":
            coded = True
    if coded and length is not None:
        # A proxy in front may have gone by the other one (RFC 9112, 6.1).
        raise MalformedRequest(
            "The request has both Content-Length and Transfer-Encoding; send one of them.",
            param="Content-Length",
        )
    if length is not None and int(length) > settings.max_body_bytes:
        raise BodyTooLarge(
            f"Content-Length is {length.decode('ascii')}; at most "
            f"{settings.max_body_bytes} bytes are taken.",
            param="Content-Length",
        )
    limit = settings.max_header_bytes
    if size > limit:
        raise HeadersTooLarge(
            f"The request line and headers are {size} bytes; at most {limit} are taken."
        )


def http_scope(
    request: RequestHead,
    *,
    client: Address | None,
    server: Address | None,
    root_path: str,
    secure: bool,
    state: dict[str, object] | None,
) -> Scope:
    """Make the scope of one request.

    :param secure: it came by TLS.
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
        "scheme": "https" if secure else "http",
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
