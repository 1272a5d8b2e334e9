"""Where the app lives in a test: under a server, and there alone or inside another app.

In: the app. Out: its address, and word of every request that has left it.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import anyio
from starlette.types import ASGIApp, Receive, Scope, Send

from tests.hosts.servers import HOSTS, Host
from tests.leaving import Client
from tilert_stream.asgi import App

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
LIMIT = 60
"""Seconds after which a test that hangs fails; nothing waits for it otherwise."""


@cache
def example(name: str) -> ModuleType:
    """An example of the documentation as a reader would run it."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@dataclass
class Door:
    """Pure ASGI around an app: counts the requests that go in, and come out of it."""

    app: ASGIApp
    entered: int = 0
    left: int = 0
    _moved: anyio.Event = field(default_factory=anyio.Event)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        self.entered += 1
        try:
            await self.app(scope, receive, send)
        finally:
            self.left += 1
            self._moved.set()

    async def until_left(self, count: int) -> None:
        """Wait until so many requests have come out, however they ended."""
        while self.left < count:
            self._moved = anyio.Event()
            await self._moved.wait()

    async def until_empty(self) -> None:
        """Wait until every request that went in has come out."""
        while self.left < self.entered:
            await self.until_left(self.left + 1)


@dataclass(frozen=True)
class Address:
    """Where the served app is found."""

    port: int
    prefix: str
    door: Door
    clients: ExitStack
    """They leave when the test is over, if they have not before."""

    def connect(self, *, receive_buffer: int | None = None) -> Client:
        client = Client(self.port, receive_buffer=receive_buffer)
        self.clients.callback(client.leave)
        return client

    def post(self, *, stream: bool, **options: Any) -> Client:
        client = self.connect()
        client.post(stream=stream, prefix=self.prefix, **options)
        return client


@dataclass(frozen=True)
class Site:
    """A server, and the example of an app that the app is mounted in, if any."""

    host: Host
    mount: str | None = None

    @property
    def name(self) -> str:
        return self.host.name if self.mount is None else f"{self.mount} on {self.host.name}"

    def build(self, llm: App) -> ASGIApp:
        if self.mount is None:
            return llm
        made: ASGIApp = example(f"embed_{self.mount}").make_host(llm)
        return made

    @asynccontextmanager
    async def serve(
        self, llm: App, app: ASGIApp | None = None, *, limit: float = LIMIT
    ) -> AsyncGenerator[Address]:
        """Serve ``llm``, or an ``app`` that has it under ``/llm`` already."""
        door = Door(self.build(llm) if app is None else app)
        prefix = "" if self.mount is None and app is None else "/llm"
        with anyio.fail_after(limit):
            async with self.host.serve(door) as port:
                with ExitStack() as clients:
                    yield Address(port, prefix, door, clients)


BY_NAME = {host.name: host for host in HOSTS}
MOUNTED_ON = ("uvicorn-httptools-uvloop", "hypercorn-trio", "granian")
"""One of each kind: that an app is mounted changes nothing below it."""
SITES = (
    *(Site(host) for host in HOSTS),
    *(Site(BY_NAME[n], m) for n in MOUNTED_ON for m in ("starlette", "fastapi", "litestar")),
)
