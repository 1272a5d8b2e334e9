"""A right server made wrong in one place: what it is asked and what it answers, changed on the way.

In: an ASGI app, and a fault. Out: an app with the fault, the rest as it was.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio
import orjson

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

LONG = 400


@dataclass
class Asked:
    path: str
    http_version: str
    headers: dict[bytes, bytes]
    raw: bytes
    parts: int
    fields: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def stream(self) -> bool:
        return self.fields.get("stream") is True


@dataclass
class Reply:
    status: int
    headers: dict[bytes, bytes]
    body: bytes
    cut: bool = False


Before = Callable[[Asked], object]
After = Callable[[Asked, Reply], object]


def nothing(*_: object) -> None:
    """No fault."""


class Spoiled:
    def __init__(self, app: ASGIApp, before: Before = nothing, after: After = nothing) -> None:
        self._app = app
        self._before = before
        self._after = after

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        asked = await read(scope, receive)
        if asked is None:
            return
        was = orjson.dumps(asked.fields)
        self._before(asked)
        body = orjson.dumps(asked.fields) if orjson.dumps(asked.fields) != was else asked.raw
        reply = await self._reply(scope, asked, body)
        self._after(asked, reply)
        if b"content-length" in reply.headers:
            reply.headers[b"content-length"] = str(len(reply.body)).encode()
        head = list(reply.headers.items())
        await send({"type": "http.response.start", "status": reply.status, "headers": head})
        last = {"type": "http.response.body", "body": reply.body, "more_body": reply.cut}
        await send(last)

    async def _reply(self, scope: Scope, asked: Asked, body: bytes) -> Reply:
        asked.headers[b"content-length"] = str(len(body)).encode()
        given = dict(scope, headers=list(asked.headers.items()), extensions={})
        messages: list[Message] = []
        parts = [body]

        async def whole() -> Message:
            if parts:
                return {"type": "http.request", "body": parts.pop(), "more_body": False}
            # A wrapped app is told nothing of a client that leaves: these faults are others.
            await anyio.sleep_forever()
            raise AssertionError

        async def keep(message: Message) -> None:
            messages.append(message)

        await self._app(given, whole, keep)
        content = b"".join(message.get("body", b"") for message in messages[1:])
        return Reply(messages[0]["status"], dict(messages[0]["headers"]), content)


async def read(scope: Scope, receive: Receive) -> Asked | None:
    """The request; None where its client left."""
    raw, parts, more = b"", 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts += bool(message.get("body"))
        raw += message.get("body", b"")
        more = message.get("more_body", False)
    asked = Asked(scope["path"], scope["http_version"], dict(scope["headers"]), raw, parts)
    try:
        fields = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return asked
    if isinstance(fields, dict):
        asked.fields = fields
    return asked


def again(asked: Asked, receive: Receive) -> Receive:
    """A request that has been read, to be read once more."""
    body = [asked.raw]

    async def receive_again() -> Message:
        if body:
            return {"type": "http.request", "body": body.pop(), "more_body": False}
        return await receive()

    return receive_again


class Leaky:
    """Four slots; whoever leaves a long answer, or amid a request, takes one along."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        if self._held >= 4:
            await send({"type": "http.response.start", "status": 429, "headers": []})
            await send({"type": "http.response.body", "body": b"busy"})
            return
        asked = await read(scope, receive)
        if asked is None or asked.fields.get("max_tokens") == LONG:
            self._held += 1
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"data: {}\n\n", "more_body": True})
            while (await receive())["type"] != "http.disconnect":
                pass
            return
        await self._app(dict(scope, extensions={}), again(asked, receive), send)


class OneReader:
    """While one client has not taken its long stream and gone, nobody else is served."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._taken = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        if self._taken:
            await send({"type": "http.response.start", "status": 503, "headers": []})
            await send({"type": "http.response.body", "body": b"busy"})
            return
        asked = await read(scope, receive)
        if asked is not None and asked.fields.get("max_tokens") == LONG:
            self._taken = True
            while (await receive())["type"] != "http.disconnect":
                pass
            self._taken = False
            return
        if asked is not None:
            await self._app(dict(scope, extensions={}), again(asked, receive), send)
