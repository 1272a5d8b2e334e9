"""Every ASGI server that the library is tested under, each in the test's own event loop.

In: an ASGI app. Out: the port where it is served, from an entered block to its end.

A server gets a socket that listens already: who connects before it has started waits in the
backlog, so that nobody has to ask whether it is there.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal, cast

import anyio
import hypercorn.asyncio
import hypercorn.config
import hypercorn.trio
import uvicorn
from granian._granian import SocketHolder
from granian.constants import HTTPModes, Interfaces
from granian.log import LogLevels
from granian.server import embed
from starlette.types import ASGIApp

BACKLOG = 128

GRACE = 60
"""Seconds that a server has to come to its end, and a client to go on."""

LOG = logging.getLogger("tests.hosts")
"""What a server says, where it can be told where to say it."""


class _Uvicorn(uvicorn.Server):
    """Uvicorn looks ten times a second whether it is to stop; this one is told."""

    def __init__(self, config: uvicorn.Config, stop: anyio.Event) -> None:
        super().__init__(config)
        self._stop = stop

    async def main_loop(self) -> None:
        await self.on_tick(0)  # makes the headers that every answer has
        await self._stop.wait()


async def _uvicorn(app: ASGIApp, listener: socket.socket, stop: anyio.Event, http: str) -> None:
    config = uvicorn.Config(
        app,
        http=http,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        timeout_keep_alive=GRACE,
    )
    await _Uvicorn(config, stop).serve([listener])


async def uvicorn_h11(app: ASGIApp, listener: socket.socket, stop: anyio.Event) -> None:
    await _uvicorn(app, listener, stop, "h11")


async def uvicorn_httptools(app: ASGIApp, listener: socket.socket, stop: anyio.Event) -> None:
    await _uvicorn(app, listener, stop, "httptools")


async def _hypercorn(
    module: ModuleType, app: ASGIApp, listener: socket.socket, stop: anyio.Event
) -> None:
    config = hypercorn.config.Config()
    config.errorlog = LOG
    config.keep_alive_timeout = GRACE
    # It closes the descriptor itself.
    config.bind = [f"fd://{os.dup(listener.fileno())}"]
    await module.serve(app, config, shutdown_trigger=stop.wait)


async def hypercorn_asyncio(app: ASGIApp, listener: socket.socket, stop: anyio.Event) -> None:
    await _hypercorn(hypercorn.asyncio, app, listener, stop)


async def hypercorn_trio(app: ASGIApp, listener: socket.socket, stop: anyio.Event) -> None:
    await _hypercorn(hypercorn.trio, app, listener, stop)


class _Granian(embed.Server):
    """Granian makes its socket from an address; this one is given it."""

    def __init__(self, app: ASGIApp, listener: socket.socket) -> None:
        super().__init__(
            app,
            interface=Interfaces.ASGI,
            http=HTTPModes.http1,
            websockets=False,
            log_level=LogLevels.error,  # it warns that this use of it is new
            log_dictconfig={
                "incremental": True,
                "formatters": {},
                "handlers": {},
                "loggers": {"_granian": {"propagate": True}},
            },
        )
        self._listener = listener

    def _init_shared_socket(self) -> None:
        descriptor = os.dup(self._listener.fileno())
        self._shd = cast("Any", SocketHolder)(descriptor, False, BACKLOG)


async def granian(app: ASGIApp, listener: socket.socket, stop: anyio.Event) -> None:
    server = _Granian(app, listener)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.serve)
        await stop.wait()
        cast("Any", server).stop()


@dataclass(frozen=True)
class Host:
    """A server on an event loop."""

    name: str
    run: Callable[[ASGIApp, socket.socket, anyio.Event], Coroutine[object, object, None]]
    loop: Literal["asyncio", "uvloop", "trio"]

    @property
    def backend(self) -> tuple[str, dict[str, object]]:
        if self.loop == "trio":
            return "trio", {}
        return "asyncio", {"use_uvloop": self.loop == "uvloop"}

    @asynccontextmanager
    async def serve(self, app: ASGIApp) -> AsyncGenerator[int]:
        """Serve ``app`` on a port of loopback; its lifespan is over when the block is left."""
        stop = anyio.Event()
        # A test that fails leaves its server like any other; cut off, it would leave threads.
        life = anyio.CancelScope(shield=True)

        async def live(listener: socket.socket) -> None:
            with life:
                await self.run(app, listener, stop)

        with socket.create_server(("127.0.0.1", 0), backlog=BACKLOG) as listener:
            listener.setblocking(False)
            # Connections inherit it. Servers set it on sockets of their own, not on given ones.
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(live, listener)
                try:
                    yield listener.getsockname()[1]
                finally:
                    stop.set()
                    life.deadline = anyio.current_time() + GRACE
            assert not life.cancelled_caught, f"{self.name} did not stop within {GRACE} s"


HOSTS = (
    Host("uvicorn-h11", uvicorn_h11, "asyncio"),
    Host("uvicorn-h11-uvloop", uvicorn_h11, "uvloop"),
    Host("uvicorn-httptools", uvicorn_httptools, "asyncio"),
    Host("uvicorn-httptools-uvloop", uvicorn_httptools, "uvloop"),
    Host("hypercorn-asyncio", hypercorn_asyncio, "asyncio"),
    Host("hypercorn-uvloop", hypercorn_asyncio, "uvloop"),
    Host("hypercorn-trio", hypercorn_trio, "trio"),
    Host("granian", granian, "asyncio"),
    Host("granian-uvloop", granian, "uvloop"),
)
