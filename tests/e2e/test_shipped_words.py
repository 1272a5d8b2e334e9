"""The shipped model behind the whole server, to the official SDK: what an empty cache serves."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest
from openai import AsyncOpenAI

from tilert_stream.asgi import App
from tilert_stream.config import ServeConfig
from tilert_stream.serve.all_in_one import build_app

# The SDK leaves its own generators to the garbage collector once it has read [DONE].
pytestmark = pytest.mark.filterwarnings(
    r"ignore:Async generator '(openai|httpx2|httpcore2)\.:ResourceWarning"
)

Serve = Callable[[App], AbstractAsyncContextManager[int]]
HELLO = "Hello! Ask me what a word means, and I will explain it."


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> App:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TILERT_STREAM_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("PIP_NO_INDEX", "1")
        return build_app(ServeConfig(slots=2, max_seq_len=512, threads=1))


async def test_real_words_without_a_network(serve: Serve, app: App) -> None:
    async with serve(app) as port:
        url = f"http://127.0.0.1:{port}/v1"
        async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            (model,) = [model.id async for model in client.models.list()]
            stream = await client.chat.completions.create(
                model=model,
                messages=[{"role": "user", "content": "Hello"}],
                temperature=0,
                max_tokens=60,
                stream=True,
                stream_options={"include_usage": True},
            )
            chunks = [chunk async for chunk in stream]
    assert model == "tiny-glm5"
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == HELLO
    assert chunks[-2].choices[0].finish_reason == "stop"
    usage = chunks[-1].usage
    assert usage is not None
    tokens = len(app.card.tokenizer.encode(HELLO, add_special_tokens=False))
    assert usage.completion_tokens >= tokens
