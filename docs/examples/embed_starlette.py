"""The whole API under a prefix of a Starlette app: ``/llm/v1/chat/completions``."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from tilert_stream.asgi import App


async def home(_request: Request) -> PlainTextResponse:
    return PlainTextResponse("the host's own page")


def make_host(llm: App) -> Starlette:
    @asynccontextmanager
    async def lifespan(_host: Starlette) -> AsyncGenerator[None]:
        async with llm.lifespan():  # a mounted app gets no lifespan of its own
            yield

    return Starlette(routes=[Route("/", home), Mount("/llm", app=llm)], lifespan=lifespan)


if __name__ == "__main__":
    import uvicorn

    from tilert_stream.config import ServeConfig
    from tilert_stream.serve.all_in_one import build_app

    uvicorn.run(make_host(build_app(ServeConfig())), port=8000)
