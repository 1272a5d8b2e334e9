"""Further ways that the official SDK has to ask, on a real model behind our server."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal

import openai
import pytest
from anyio import to_thread
from openai import AsyncOpenAI, AsyncStream, OpenAI
from openai.types.chat import ChatCompletion, ChatCompletionChunk
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
SEED = 5
END = "."
"""A sentence and no more: the streaming helper raises where an answer is cut."""


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


async def test_the_streaming_helper_of_a_tool_from_a_type(sides: Sides, serve: Serve) -> None:
    async with (
        sdk(sides, serve, "hermes") as client,
        client.chat.completions.stream(
            messages=ASKED,
            tools=[openai.pydantic_function_tool(Measure)],
            tool_choice="required",
            parallel_tool_calls=False,
            model=MODEL,
            max_tokens=150,
            seed=SEED,
            stream_options={"include_usage": True},
        ) as stream,
    ):
        events = [event async for event in stream]
        final = await stream.get_final_completion()
    (done,) = [event for event in events if event.type == "tool_calls.function.arguments.done"]
    assert isinstance(done.parsed_arguments, Measure)
    parts = [event for event in events if event.type == "tool_calls.function.arguments.delta"]
    assert "".join(part.arguments_delta for part in parts) == done.arguments
    (choice,) = final.choices
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls or []
    assert call.function.parsed_arguments == done.parsed_arguments
    assert final.usage is not None
    assert final.usage.completion_tokens > len(parts)


async def test_the_streaming_helper_s_text_is_the_plain_answer(sides: Sides, serve: Serve) -> None:
    async with sdk(sides, serve) as client:
        plain = await client.chat.completions.create(
            messages=ASKED,
            logprobs=True,
            top_logprobs=1,
            model=MODEL,
            max_tokens=150,
            temperature=0,
            stop=END,
        )
        helper = client.chat.completions.stream(
            messages=ASKED,
            logprobs=True,
            top_logprobs=1,
            model=MODEL,
            max_tokens=150,
            temperature=0,
            stop=END,
        )
        async with helper as stream:
            deltas = [event.delta async for event in stream if event.type == "content.delta"]
            final = await stream.get_final_completion()
    assert len(deltas) > 1
    assert "".join(deltas) == plain.choices[0].message.content
    (streamed,), (whole,) = final.choices, plain.choices
    assert streamed.message.content == whole.message.content
    assert streamed.finish_reason == whole.finish_reason
    assert streamed.logprobs == whole.logprobs


async def test_with_raw_response(sides: Sides, serve: Serve) -> None:
    async with sdk(sides, serve) as client:
        raw = await client.chat.completions.with_raw_response.create(
            messages=ASKED,
            model=MODEL,
            max_tokens=4,
            seed=SEED,
            extra_headers={"x-request-id": "mine-1"},
        )
        answer = raw.parse()
        streamed = await client.chat.completions.with_raw_response.create(
            messages=ASKED, model=MODEL, max_tokens=4, seed=SEED, stream=True
        )
        text = [chunk.choices[0].delta.content or "" async for chunk in streamed.parse()]
        models = await client.models.with_raw_response.list()
    assert raw.headers["content-type"] == "application/json"
    assert raw.request_id == raw.headers["x-request-id"] == "mine-1"
    assert streamed.headers["content-type"].startswith("text/event-stream")
    assert streamed.request_id not in (None, "mine-1")
    assert "".join(text) == answer.choices[0].message.content
    assert [model.id for model in models.parse().data] == [MODEL]


async def test_with_streaming_response(sides: Sides, serve: Serve) -> None:
    """The body is read by the client's own hand, piece by piece."""
    async with sdk(sides, serve) as client:
        async with client.chat.completions.with_streaming_response.create(
            messages=ASKED, model=MODEL, max_tokens=4, seed=SEED
        ) as response:
            body = b"".join([part async for part in response.iter_bytes()])
        async with client.chat.completions.with_streaming_response.create(
            messages=ASKED, model=MODEL, max_tokens=4, seed=SEED, stream=True
        ) as response:
            lines = [line async for line in response.iter_lines() if line]
    answer = ChatCompletion.model_validate_json(body)
    assert answer.choices[0].finish_reason == "length"
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"


async def test_the_client_that_blocks(sides: Sides, serve: Serve) -> None:
    async with serve(sides.app()) as port:

        def ask() -> tuple[str | None, str]:
            with OpenAI(
                base_url=f"http://127.0.0.1:{port}/v1",
                api_key="none",
                max_retries=0,
                timeout=60,
                _strict_response_validation=True,
            ) as client:
                plain = client.chat.completions.create(
                    messages=ASKED, model=MODEL, max_tokens=150, temperature=0, stop=END
                )
                with client.chat.completions.stream(
                    messages=ASKED, model=MODEL, max_tokens=150, temperature=0, stop=END
                ) as stream:
                    final = stream.get_final_completion()
                text = final.choices[0].message.content
                return plain.choices[0].message.content, text or ""

        plain, streamed = await to_thread.run_sync(ask)
    assert plain == streamed


async def test_every_parameter_that_the_sdk_knows_and_this_server_takes(
    sides: Sides, serve: Serve
) -> None:
    """The SDK's own example of all parameters, without the values that are refused."""
    given: dict[str, Any] = {
        "messages": [{"content": "string", "role": "developer", "name": "name"}],
        "model": MODEL,
        "frequency_penalty": -2,
        "function_call": "none",
        "functions": [],
        "logit_bias": {"0": 0},
        "logprobs": True,
        "max_completion_tokens": 4,
        "max_tokens": 4,
        "metadata": {"foo": "string"},
        "modalities": ["text"],
        "n": 1,
        "parallel_tool_calls": True,
        "prediction": {"content": "string", "type": "content"},
        "presence_penalty": -2,
        "prompt_cache_key": "prompt-cache-key-1234",
        "prompt_cache_options": {"mode": "implicit", "ttl": "30m"},
        "prompt_cache_retention": "in_memory",
        "reasoning_effort": "none",
        "response_format": {"type": "text"},
        "safety_identifier": "safety-identifier-1234",
        "seed": -9007199254740991,
        "service_tier": "auto",
        "stop": "\n",
        "store": True,
        "temperature": 1,
        "tool_choice": "none",
        "tools": [
            {
                "function": {
                    "name": "name",
                    "description": "description",
                    "parameters": {"foo": "bar"},
                    "strict": True,
                },
                "type": "function",
            }
        ],
        "top_logprobs": 0,
        "top_p": 1,
        "user": "user-1234",
        "verbosity": "low",
    }
    options = {"include_obfuscation": True, "include_usage": True}
    async with sdk(sides, serve, "hermes") as client:
        create: Any = client.chat.completions.create
        plain: ChatCompletion = await create(**given, stream=False)
        stream: AsyncStream[ChatCompletionChunk] = await create(
            **given, stream=True, stream_options=options
        )
        chunks = [chunk async for chunk in stream]
    assert chunks[-1].usage == plain.usage
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == plain.choices[0].message.content
