"""The app's lifespan: started before the server listens, shut down after it has drained."""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel

from .errors import ASGIViolation, StartupFailed
from .scope import ASGI_VERSION

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from starlette.types import ASGIApp, Message

    from .settings import ServerSettings

__all__ = ("lifespan",)

logger = logging.getLogger("tilert_stream.http")


@asynccontextmanager
async def lifespan(
    app: ASGIApp, settings: ServerSettings
) -> AsyncGenerator[dict[str, object] | None, None]:
    """Run the app's lifespan around the block.

    :return: the state that the app left for its requests; None if it has no lifespan.
    :raises StartupFailed: the app answered ``lifespan.startup.failed``, or, with the setting
        ``on``, raised.
    """
    if settings.lifespan == "off":
        yield None
        return
    conversation = _Conversation(app, required=settings.lifespan == "on")
    async with anyio.create_task_group() as group:
        group.start_soon(conversation.run)
        try:
            await conversation.started.wait()
            if conversation.failure is not None:
                raise conversation.failure
            yield conversation.state if conversation.supported else None
        finally:
            if conversation.supported:
                conversation.shutdown.set()
                with anyio.move_on_after(settings.shutdown_timeout, shield=True):
                    await conversation.ended.wait()
                if not conversation.ended.is_set():
                    limit = settings.shutdown_timeout
                    logger.error("The app's lifespan did not shut down within %s s.", limit)
            conversation.scope.cancel()


class _Conversation:
    """One run of the app with a scope of type ``lifespan``."""

    def __init__(self, app: ASGIApp, *, required: bool) -> None:
        self._app = app
        self._required = required
        self._asked = False
        # Whoever cancels the server, the app ends by its shutdown, in bounded time: what it holds
        # must be given back.
        self.scope = anyio.CancelScope(shield=True)
        self.state: dict[str, object] = {}
        self.supported = False
        self.failure: StartupFailed | None = None
        self.started = anyio.Event()
        self.shutdown = anyio.Event()
        self.ended = anyio.Event()

    async def run(self) -> None:
        """Call the app. What it raises after its startup is the server's end, and is raised."""
        scope = {"type": "lifespan", "asgi": ASGI_VERSION, "state": self.state}
        try:
            with self.scope:
                await self._app(scope, self._receive, self._send)
        except Exception as error:
            if self.supported:
                raise
            self._settle(error)
        else:
            self._settle(None)
        finally:
            self.ended.set()

    def _settle(self, error: Exception | None) -> None:
        if not self.supported and self.failure is None:
            if self._required:
                self.failure = StartupFailed(
                    f"The app did not complete its lifespan startup: {error or 'it returned'}."
                )
                self.failure.__cause__ = error
            else:
                logger.info("The app has no lifespan (%r); it is served without.", error)
        self.started.set()

    async def _receive(self) -> Message:
        await anyio.lowlevel.checkpoint()
        if not self._asked:
            self._asked = True
            return {"type": "lifespan.startup"}
        await self.shutdown.wait()
        return {"type": "lifespan.shutdown"}

    async def _send(self, message: Message) -> None:
        await anyio.lowlevel.checkpoint()
        kind: str = message["type"]
        if kind == "lifespan.startup.complete":
            self.supported = True
            self.started.set()
        elif kind == "lifespan.startup.failed":
            self.failure = StartupFailed(message.get("message") or "The app failed to start.")
            self.started.set()
        elif kind == "lifespan.shutdown.complete":
            self.ended.set()
        elif kind == "lifespan.shutdown.failed":
            logger.error("The app failed to shut down: %s", message.get("message", ""))
            self.ended.set()
        else:
            raise ASGIViolation(f"{kind!r} is no message of a lifespan.")
