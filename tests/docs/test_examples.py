"""The examples of the documentation, run."""

from __future__ import annotations

import importlib.util
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import anyio
import httpx2
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.types import ASGIApp

from tilert_stream.testing import assert_contract
from tilert_stream.testing.apps import ScriptedApp

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "abc"}], "max_tokens": 5}
STREAM = CHAT | {"stream": True}


def example(name: str) -> Any:
    """The module as a reader would run it."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@asynccontextmanager
async def under_uvicorn(app: ASGIApp, http: str) -> AsyncGenerator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(app, http=http, ws="none", lifespan="on", log_level="warning")
        server = uvicorn.Server(config)
        async with anyio.create_task_group() as tasks:
            # Connections wait in the backlog until uvicorn has started.
            tasks.start_soon(server.serve, [listener])
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
            server.should_exit = True


@pytest.mark.parametrize("anyio_backend", [("asyncio", {}), ("asyncio", {"use_uvloop": True})])
@pytest.mark.parametrize("http", ["h11", "httptools"])
async def test_embed_starlette_under_uvicorn(http: str) -> None:
    host = example("embed_starlette").make_host(ScriptedApp())
    async with under_uvicorn(host, http) as url, httpx2.AsyncClient() as client:
        assert (await client.get(f"{url}/")).text == "the host's own page"
        plain = await client.post(f"{url}/llm/v1/chat/completions", json=CHAT)
        assert plain.json()["choices"][0]["message"]["content"] == "abcab"
        lines: list[str] = []
        async with client.stream("POST", f"{url}/llm/v1/chat/completions", json=STREAM) as streamed:
            assert streamed.headers["content-type"].startswith("text/event-stream")
            lines += [line async for line in streamed.aiter_lines() if line]
        assert lines[-1] == "data: [DONE]"
        assert len(lines) >= 3


async def test_a_mounted_app_without_its_lifespan_says_so() -> None:
    from starlette.routing import Mount

    host = Starlette(routes=[Mount("/llm", app=ScriptedApp())])
    transport = httpx2.ASGITransport(app=host)
    async with httpx2.AsyncClient(transport=transport, base_url="http://host") as client:
        answer = await client.post("/llm/v1/chat/completions", json=CHAT)
    assert answer.status_code == 503
    assert "app.lifespan" in answer.json()["error"]["message"]


async def test_own_endpoint() -> None:
    llm = ScriptedApp()
    host = Starlette(routes=[example("own_endpoint").make_route(llm)])
    transport = httpx2.ASGITransport(app=host)
    async with (
        llm.lifespan(),
        httpx2.AsyncClient(transport=transport, base_url="http://host") as client,
    ):
        answer = await client.post("/complete", content="echo me. ")
    assert answer.text == "echo me. echo me. echo me. echo " + "\n"
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"


async def test_without_http() -> None:
    llm = ScriptedApp()
    async with llm.lifespan():
        assert await example("without_http").tell(llm, "abc", 7) == "abcabca"


async def test_shout_is_placed_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(EXAMPLES), *sys.path])
    llm = ScriptedApp()
    llm.service.pipeline = llm.service.pipeline.insert(
        "shout:Shout", where="after", anchor="detokenize"
    )
    async with llm.lifespan():
        assert await example("without_http").tell(llm, "abc", 4) == "ABCA"


async def test_moderate_ends_the_answer() -> None:
    async def allowed(text: str) -> bool:
        await anyio.lowlevel.checkpoint()
        return "cab" not in text

    llm = ScriptedApp()
    moderate = example("moderate").Moderate(allowed)
    llm.service.pipeline = llm.service.pipeline.insert(moderate, where="after", anchor="detokenize")
    async with llm.lifespan():
        assert await example("without_http").tell(llm, "abc", 40) == "abca"
        assert llm.service.ledger.counts == {}


def test_the_examples_keep_the_contract() -> None:
    async def allowed(_text: str) -> bool:
        await anyio.lowlevel.checkpoint()
        return True

    assert_contract(example("shout").Shout)
    assert_contract(example("moderate").Moderate(allowed))
    assert_contract(example("own_endpoint").EncodeText)
