"""The official SDK's own way to stream tools, against our app on our server."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any

import openai
import pytest
from openai import AsyncOpenAI

from tests.cases.asking import ByteApp, batches, says
from tilert_engine.scripted import Script
from tilert_stream.asgi import App
from tilert_stream.parsers.hermes import HERMES

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam

# The SDK leaves its own generators to the garbage collector once it has read [DONE].
pytestmark = pytest.mark.filterwarnings(
    r"ignore:Async generator '(openai|httpx2|httpcore2)\.:ResourceWarning"
)

Serve = Callable[[App], AbstractAsyncContextManager[int]]

TOOLS: list[ChatCompletionToolParam] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "strict": True,
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }
]
ANSWER = (
    "<think>\nTwo cities.\n</think>\n\nI will look.\n"
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Berlin 😀"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
)
TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool.function.name }};{% endfor %}"
    "{% for m in messages %}{{ m.role }}:{{ m.content }}"
    "{% for call in m.tool_calls or [] %}"
    "{{ call.function.name }}({{ call.function.arguments.city }})"
    "{% endfor %};{% endfor %}"
)
ASKED: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Weather?"}]


def make_app(answer: str = ANSWER, chain: int = 3) -> ByteApp:
    script = Script(token=says(answer.encode()), chain=batches(*[chain] * 200))
    return ByteApp(script, template=TEMPLATE, parser=HERMES)


@asynccontextmanager
async def sdk(port: int) -> AsyncGenerator[AsyncOpenAI]:
    url = f"http://127.0.0.1:{port}/v1"
    async with AsyncOpenAI(
        base_url=url,
        api_key="none",
        max_retries=0,
        timeout=20,
        _strict_response_validation=True,
    ) as client:
        yield client


async def test_the_streaming_helper_puts_calls_together(serve: Serve) -> None:
    async with (
        serve(make_app()) as port,
        sdk(port) as client,
        client.chat.completions.stream(
            model="byte",
            messages=ASKED,
            tools=TOOLS,
            max_tokens=1000,
            stream_options={"include_usage": True},
        ) as stream,
    ):
        events = [event async for event in stream]
        final = await stream.get_final_completion()
    done = [event for event in events if event.type == "tool_calls.function.arguments.done"]
    assert [(event.index, event.name) for event in done] == [(0, "get_weather"), (1, "get_weather")]
    assert [event.parsed_arguments for event in done] == [{"city": "Berlin 😀"}, {"city": "Paris"}]
    parts = [event for event in events if event.type == "tool_calls.function.arguments.delta"]
    assert len(parts) > 10, "arguments come in fragments"
    (choice,) = final.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "I will look."
    assert choice.message.to_dict()["reasoning"] == "Two cities."
    calls = choice.message.tool_calls or []
    assert [call.function.parsed_arguments for call in calls] == [
        {"city": "Berlin 😀"},
        {"city": "Paris"},
    ]
    assert final.usage is not None
    assert final.usage.completion_tokens == len(ANSWER.encode()) + 1
    assert final.usage.completion_tokens_details is not None
    assert final.usage.completion_tokens_details.reasoning_tokens == ANSWER.index("\n\nI")


async def test_a_result_goes_back(serve: Serve) -> None:
    """The answer's message, as the SDK has it, is one of the next request's; results follow it."""
    app = make_app()
    async with serve(app) as port, sdk(port) as client:
        first = await client.chat.completions.create(
            model="byte", messages=ASKED, tools=TOOLS, max_tokens=1000
        )
        message = first.choices[0].message
        assert message.tool_calls is not None
        second: list[Any] = [
            *ASKED,
            message.to_dict(),
            *(
                {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
                for call in message.tool_calls
            ),
        ]
        again = await client.chat.completions.create(
            model="byte", messages=second, tools=TOOLS, max_tokens=1000
        )
    assert again.usage is not None
    prompt = (
        "get_weather;user:Weather?;assistant:I will look.get_weather(Berlin 😀)get_weather(Paris);"
        "tool:sunny;tool:sunny;"
    )
    assert again.usage.prompt_tokens == len(prompt.encode())


async def test_a_call_that_is_cut_is_an_error_of_the_helper(serve: Serve) -> None:
    """The SDK counts on ``length`` for calls whose arguments are not whole."""
    async with serve(make_app()) as port, sdk(port) as client:
        cut = client.chat.completions.stream(
            model="byte", messages=ASKED, tools=TOOLS, max_tokens=120
        )
        async with cut as stream:
            with pytest.raises(openai.LengthFinishReasonError):
                await stream.until_done()
