"""The whole API under a prefix of a FastAPI app, beside its own routes and middleware."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tilert_stream.asgi import App


class NameServer:
    """Pure ASGI: every message is passed on in the moment it comes."""

    def __init__(self, app: ASGIApp, name: str) -> None:
        self._app = app
        self._name = name.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [*message["headers"], (b"x-served-by", self._name)]
                message = {**message, "headers": headers}
            await send(message)

        await self._app(scope, receive, named)


def make_host(llm: App) -> FastAPI:
    @asynccontextmanager
    async def lifespan(_host: FastAPI) -> AsyncGenerator[None]:
        async with llm.lifespan():  # a mounted app gets no lifespan of its own
            yield

    host = FastAPI(lifespan=lifespan)
    host.add_middleware(NameServer, name="fastapi")

    @host.get("/")
    async def home() -> dict[str, bool]:  # pyright: ignore[reportUnusedFunction] - FastAPI calls it
        return {"ready": llm.service.ready}

    host.mount("/llm", llm)
    return host


if __name__ == "__main__":
    import uvicorn

    from tilert_stream.config import ServeConfig
    from tilert_stream.serve.all_in_one import build_app

    uvicorn.run(make_host(build_app(ServeConfig())), port=8000)
