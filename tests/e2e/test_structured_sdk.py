"""The official SDK's helpers for structured answers, on a real model behind our server."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal

import openai
import pytest
from openai import AsyncOpenAI
from pydantic import BaseModel

from tests.e2e.told import Sides
from tilert_stream.asgi import App

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionMessageParam

pytest.importorskip("llguidance")

# The SDK leaves its own generators to the garbage collector once it has read [DONE].
pytestmark = pytest.mark.filterwarnings(
    r"ignore:Async generator '(openai|httpx2|httpcore2)\.:ResourceWarning"
)

Serve = Callable[[App], AbstractAsyncContextManager[int]]
ASKED: list[ChatCompletionMessageParam] = [
    {"role": "user", "content": "What does the word river mean?"}
]
MODEL = "tiny-glm5"
LENGTH = 150
SEED = 5


class River(BaseModel):
    """What the answer is to be."""

    water: Literal["salt", "sweet"]
    depth: int
    dry: bool


class Measure(BaseModel):
    """A tool's arguments."""

    unit: Literal["metre", "foot"]


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    """The SDK goes by anyio, too."""
    return request.param


@pytest.fixture(scope="module")
def sides() -> Sides:
    return Sides()


@asynccontextmanager
async def sdk(sides: Sides, serve: Serve, parser: str = "none") -> AsyncGenerator[AsyncOpenAI]:
    """Strict: a schema miss of ours raises."""
    async with (
        serve(sides.app(parser)) as port,
        AsyncOpenAI(
            base_url=f"http://127.0.0.1:{port}/v1",
            api_key="none",
            max_retries=0,
            timeout=60,
            _strict_response_validation=True,
        ) as client,
    ):
        yield client


async def test_parse(sides: Sides, serve: Serve) -> None:
    async with sdk(sides, serve) as client:
        answer = await client.chat.completions.parse(
            messages=ASKED,
            response_format=River,
            logprobs=True,
            top_logprobs=2,
            n=2,
            model=MODEL,
            max_tokens=LENGTH,
            seed=SEED,
        )
        assert [choice.index for choice in answer.choices] == [0, 1]
        assert answer.usage is not None
        total = 0
        for choice in answer.choices:
            assert choice.finish_reason == "stop"
            assert isinstance(choice.message.parsed, River)
            assert choice.logprobs is not None
            assert choice.logprobs.content is not None
            total += len(choice.logprobs.content)
            assert all(len(entry.top_logprobs) == 2 for entry in choice.logprobs.content)
        assert total == answer.usage.completion_tokens


async def test_stream_of_a_parsed_answer(sides: Sides, serve: Serve) -> None:
    async with (
        sdk(sides, serve) as client,
        client.chat.completions.stream(
            messages=ASKED,
            response_format=River,
            logprobs=True,
            model=MODEL,
            max_tokens=LENGTH,
            seed=SEED,
        ) as stream,
    ):
        events = [event async for event in stream]
        final = await stream.get_final_completion()
    assert isinstance(final.choices[0].message.parsed, River)
    (done,) = [event for event in events if event.type == "content.done"]
    assert done.parsed == final.choices[0].message.parsed
    (told,) = [event for event in events if event.type == "logprobs.content.done"]
    # The stop token has no text: its entry comes with the finish.
    spelled = b"".join(bytes(entry.bytes or ()) for entry in told.content[:-1])
    assert spelled.decode() == final.choices[0].message.content


async def test_a_forced_tool_is_parsed(sides: Sides, serve: Serve) -> None:
    tool = openai.pydantic_function_tool(Measure)
    async with sdk(sides, serve, "hermes") as client:
        answer = await client.chat.completions.parse(
            messages=ASKED,
            tools=[tool],
            tool_choice={"type": "function", "function": {"name": "Measure"}},
            model=MODEL,
            max_tokens=LENGTH,
            seed=SEED,
        )
    (call,) = answer.choices[0].message.tool_calls or []
    assert isinstance(call.function.parsed_arguments, Measure)


async def test_a_completions_logprobs(sides: Sides, serve: Serve) -> None:
    async with sdk(sides, serve) as client:
        answer = await client.completions.create(
            prompt=["The river", "The sea"], logprobs=2, model=MODEL, seed=SEED, max_tokens=5
        )
    assert [choice.index for choice in answer.choices] == [0, 1]
    for choice in answer.choices:
        assert choice.logprobs is not None
        assert choice.logprobs.tokens is not None
        assert "".join(choice.logprobs.tokens).startswith(choice.text)


async def test_a_schema_that_cannot_be_followed(sides: Sides, serve: Serve) -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "objec"}}}
    async with sdk(sides, serve) as client:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(
                messages=ASKED, response_format=form, model=MODEL, max_tokens=LENGTH, seed=SEED
            )
    assert caught.value.param == "response_format.json_schema.schema"
