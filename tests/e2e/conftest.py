"""Our app on our server, for clients that are real."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Protocol

import anyio
import pytest

from tilert_stream.http import Server, ServerSettings

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from tilert_stream.asgi import App


LOOPBACK = ServerSettings(port=0)


class Serve(Protocol):
    def __call__(
        self, app: App, settings: ServerSettings = ...
    ) -> AbstractAsyncContextManager[int]: ...


@pytest.fixture
def serve() -> Serve:
    """Serves an app on loopback; the value is the port. Leaving drains the server."""

    @asynccontextmanager
    async def serving(app: App, settings: ServerSettings = LOOPBACK) -> AsyncGenerator[int]:
        server = Server(app, settings, on_drain=app.service.drain)
        async with anyio.create_task_group() as tasks:
            addresses = await tasks.start(server.serve)
            try:
                yield addresses[0][1]
            finally:
                server.drain()

    return serving
