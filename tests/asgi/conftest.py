"""An ASGI client without a server: the messages themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import anyio
import orjson
import pytest
from starlette.types import ASGIApp, Message


@dataclass
class Exchange:
    """One request; ``leave`` is the client's going away."""

    app: ASGIApp
    scope: dict[str, Any]
    body: list[bytes]
    sent: list[Message] = field(default_factory=list[Message])
    gone: anyio.Event = field(default_factory=anyio.Event)
    first_body: anyio.Event = field(default_factory=anyio.Event)

    async def receive(self) -> Message:
        if self.body:
            part = self.body.pop(0)
            return {"type": "http.request", "body": part, "more_body": bool(self.body)}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        await anyio.lowlevel.checkpoint()
        self.sent.append(message)
        if message["type"] == "http.response.body":
            self.first_body.set()

    def leave(self) -> None:
        self.gone.set()

    async def run(self) -> Exchange:
        await self.app(self.scope, self.receive, self.send)
        return self

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in self.sent[0]["headers"]}

    @property
    def content(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent[1:])

    @property
    def json(self) -> Any:
        return orjson.loads(self.content)

    @property
    def complete(self) -> bool:
        return not self.sent[-1].get("more_body", False)

    @property
    def events(self) -> list[Any]:
        """The JSON of every event but ``[DONE]``."""
        lines = self.content.decode().split("\n\n")
        return [orjson.loads(line[6:]) for line in lines if line and line != "data: [DONE]"]

    @property
    def text(self) -> str:
        return "".join(
            choice["delta"].get("content", "")
            for event in self.events
            for choice in event.get("choices", [])
        )


Request = Callable[..., Exchange]


@pytest.fixture
def request_to() -> Request:
    def make(
        app: ASGIApp,
        path: str = "/v1/chat/completions",
        body: object = None,
        *,
        method: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> Exchange:
        raw = body if isinstance(body, bytes) else b"" if body is None else orjson.dumps(body)
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": method or ("GET" if body is None else "POST"),
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "scheme": "http",
            "headers": [(k.encode(), v.encode()) for k, v in (headers or {}).items()],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
        }
        return Exchange(app, scope, [raw])

    return make
