"""The whole API under a prefix of a Litestar app, beside its own routes and middleware."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, cast

from litestar import Litestar, asgi, get
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from tilert_stream.asgi import App


def name_server(app: ASGIApp) -> ASGIApp:
    """Pure ASGI: every message is passed on in the moment it comes."""

    async def middleware(scope: Scope, receive: Receive, send: Send) -> None:
        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-served-by", b"litestar")]
            await send(message)

        await app(scope, receive, named)

    return middleware


def make_host(llm: App) -> Litestar:
    @asynccontextmanager
    async def lifespan(_host: Litestar) -> AsyncGenerator[None]:
        async with llm.lifespan():  # a mounted app gets no lifespan of its own
            yield

    @get("/")
    async def home() -> dict[str, bool]:
        return {"ready": llm.service.ready}

    @asgi("/llm", is_mount=True, copy_scope=True)
    async def mounted(scope: Scope, receive: Receive, send: Send) -> None:
        # Litestar ends the path of every request to a mounted app with a slash.
        scope["path"] = scope["path"].rstrip("/")
        # The messages are the same; only the types of the two libraries differ.
        await llm(cast("Any", scope), cast("Any", receive), cast("Any", send))

    return Litestar(
        [home, mounted],
        lifespan=[lifespan],
        middleware=[name_server],
        logging_config=None,  # logging stays as the process has it
    )


if __name__ == "__main__":
    import uvicorn

    from tilert_stream.config import ServeConfig
    from tilert_stream.serve.all_in_one import build_app

    uvicorn.run(make_host(build_app(ServeConfig())), port=8000)
