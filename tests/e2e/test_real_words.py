"""The demo model behind the whole server: real words, on every backend, to the official SDK."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, aclosing

import anyio
import pytest
from openai import AsyncOpenAI

from tilert_stream.asgi import App
from tilert_stream.config import ServeConfig
from tilert_stream.serve import demo_model

pytestmark = [
    pytest.mark.model,
    # The SDK leaves its own generators to the garbage collector once it has read [DONE].
    pytest.mark.filterwarnings(
        r"ignore:Async generator '(openai|httpx2|httpcore2)\.:ResourceWarning"
    ),
]

Serve = Callable[[App], AbstractAsyncContextManager[int]]
CAPITAL = "What is the capital of France? Answer with one sentence."


@pytest.fixture(scope="module")
def demo() -> App:
    if demo_model.locate() is None:
        pytest.skip(f"the demo model is not in the cache; `{demo_model.COMMAND}` brings it")
    from tilert_stream.serve.all_in_one import build_app

    return build_app(ServeConfig(model="demo", slots=2, max_seq_len=512))


async def ask(client: AsyncOpenAI, question: str, tokens: int) -> tuple[str, str | None, int]:
    """The streamed answer, why it ended, and how many tokens it had."""
    stream = await client.chat.completions.create(
        model="smollm2-135m-instruct",
        messages=[{"role": "user", "content": question}],
        temperature=0,
        max_tokens=tokens,
        stream=True,
        stream_options={"include_usage": True},
    )
    text, reason, count = "", None, 0
    async for chunk in stream:
        if chunk.usage:
            count = chunk.usage.completion_tokens
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reason = choice.finish_reason or reason
    return text, reason, count


async def test_paris(serve: Serve, demo: App) -> None:
    async with serve(demo) as port:
        url = f"http://127.0.0.1:{port}/v1"
        async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            text, reason, count = await ask(client, CAPITAL, 40)
            plain = await client.chat.completions.create(
                model="smollm2-135m-instruct",
                messages=[{"role": "user", "content": CAPITAL}],
                temperature=0,
                max_tokens=40,
            )
    assert "Paris" in text
    assert reason == "stop"
    assert plain.choices[0].message.content == text
    assert plain.usage is not None
    assert plain.usage.completion_tokens == count


async def test_more_requests_than_slots_take_turns_and_keep_their_words(
    serve: Serve, demo: App
) -> None:
    questions = [CAPITAL, "Count from one to ten.", "What is water made of?"]
    alone: dict[str, str] = {}
    together: dict[str, str] = {}
    async with serve(demo) as port:
        url = f"http://127.0.0.1:{port}/v1"
        async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            for question in questions:
                alone[question] = (await ask(client, question, 12))[0]

            async def note(question: str) -> None:
                together[question] = (await ask(client, question, 12))[0]

            async with anyio.create_task_group() as tasks:
                for question in questions:
                    tasks.start_soon(note, question)
    assert together == alone
    assert all(alone.values())


async def test_leaving_stops_the_engine(serve: Serve, demo: App) -> None:
    prompt = demo.card.tokenizer.encode("Once upon a time", add_special_tokens=True)
    from tilert_stream import GenerateRequest, Limits, Sampling

    request = GenerateRequest("0", prompt, Limits(400), Sampling(temperature=0))
    async with demo.lifespan():
        async with aclosing(demo.service.stream(request)) as deltas:
            async for _ in deltas:
                break
        assert demo.service.ledger.counts == {}
