"""The official SDK against our app on our server."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import openai
import pytest
from openai import AsyncOpenAI

from tests.cases.asking import ByteApp
from tilert_engine.scripted import Script
from tilert_stream.asgi import App
from tilert_stream.errors import EngineFault
from tilert_stream.testing import Gate
from tilert_stream.testing.apps import ScriptedApp

# The SDK leaves its own generators to the garbage collector once it has read [DONE].
pytestmark = pytest.mark.filterwarnings(
    r"ignore:Async generator '(openai|httpx2|httpcore2)\.:ResourceWarning"
)

Serve = Callable[[App], AbstractAsyncContextManager[int]]


@asynccontextmanager
async def sdk(port: int, key: str = "none") -> AsyncGenerator[AsyncOpenAI]:
    url = f"http://127.0.0.1:{port}/v1"
    async with AsyncOpenAI(base_url=url, api_key=key, max_retries=0, timeout=60) as client:
        yield client


async def test_chat_streamed_and_plain(serve: Serve) -> None:
    async with serve(ScriptedApp()) as port, sdk(port) as client:
        plain = await client.chat.completions.create(
            model="echo", messages=[{"role": "user", "content": "Grüße 😀"}], max_tokens=13
        )
        stream = await client.chat.completions.create(
            model="echo",
            messages=[{"role": "user", "content": "Grüße 😀"}],
            max_tokens=13,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == plain.choices[0].message.content == "Grüße 😀G"
    assert chunks[-2].choices[0].finish_reason == plain.choices[0].finish_reason == "length"
    assert chunks[-1].usage == plain.usage
    assert plain.usage is not None
    assert plain.usage.completion_tokens == 13


async def test_completions_streamed_and_plain(serve: Serve) -> None:
    async with serve(ScriptedApp()) as port, sdk(port) as client:
        plain = await client.completions.create(model="echo", prompt="abc", max_tokens=7)
        stream = await client.completions.create(
            model="echo", prompt="abc", max_tokens=7, stream=True
        )
        text = "".join([chunk.choices[0].text async for chunk in stream])
    assert text == plain.choices[0].text == "abcabca"


async def test_models(serve: Serve) -> None:
    async with serve(ScriptedApp()) as port, sdk(port) as client:
        assert [model.id async for model in client.models.list()] == ["echo"]


async def test_err_03_the_sdk_raises_on_an_error_after_the_head(serve: Serve) -> None:
    with Gate() as gate:

        def before(turn: int) -> None:
            if turn == 1:
                gate.pass_through(turn)
                raise EngineFault("the cache is full")

        async with serve(ScriptedApp(Script(before_chain=before))) as port, sdk(port) as client:
            stream = await client.chat.completions.create(
                model="echo",
                messages=[{"role": "user", "content": "abc"}],
                max_tokens=9,
                stream=True,
            )
            text: list[str] = []

            async def read() -> None:
                async for chunk in stream:
                    text.append(chunk.choices[0].delta.content or "")
                    if text == ["a", "b"]:
                        gate.open()

            with pytest.raises(openai.APIError, match="the cache is full") as raised:
                await read()
    assert text == ["a", "b"]
    assert raised.value.code == "engine_fault"


async def test_http_04_the_sdk_reads_a_stream_with_heartbeats(serve: Serve) -> None:
    """The head comes with the first of them; prefill stands until it is there."""
    with Gate() as gate:
        app = ByteApp(Script(before_chunk=gate.pass_through), heartbeat=0.01)
        async with serve(app) as port, sdk(port) as client:
            try:
                stream = await client.chat.completions.create(
                    model="byte",
                    messages=[{"role": "user", "content": "abc"}],
                    max_tokens=4,
                    stream=True,
                )
            finally:
                gate.open()
            text = [chunk.choices[0].delta.content or "" async for chunk in stream]
    assert "".join(text) == "abca"


async def test_statuses_become_the_sdk_s_own_errors(serve: Serve) -> None:
    app = ScriptedApp(api_keys=["sk-right"], max_seq_len=32)
    async with serve(app) as port:
        async with sdk(port, "sk-wrong") as client:
            with pytest.raises(openai.AuthenticationError) as unauthorized:
                await client.chat.completions.create(model="echo", messages=[])
        assert unauthorized.value.code == "invalid_api_key"
        async with sdk(port, "sk-right") as client:
            with pytest.raises(openai.NotFoundError) as missing:
                await client.completions.create(model="gpt-9", prompt="a")
            with pytest.raises(openai.BadRequestError) as bad:
                await client.completions.create(model="echo", prompt="a" * 40)
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    assert bad.value.code == "context_length_exceeded"
