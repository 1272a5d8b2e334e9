"""What the API's description calls valid is what the server takes, and the other way round."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, get_args

import pytest
from jsonschema_rs import Draft202012Validator

from tilert_stream.errors import TilertStreamError
from tilert_stream.events import Capability, Tool
from tilert_stream.model.card import ModelCard
from tilert_stream.openai.chat import parse_chat
from tilert_stream.openai.completions import parse_completion
from tilert_stream.openai.generate import parse_generate
from tilert_stream.openai.openapi import describe_api
from tilert_stream.openai.tokenizing import detokenize, tokenize
from tilert_stream.testing.apps import ScriptedApp

Body = dict[str, Any]
Request = Callable[..., Any]
CONTEXT = 64
VOCABULARY = 257
CHAT, COMPLETION, GENERATE = "/v1/chat/completions", "/v1/completions", "/inference/v1/generate"
TOKENIZE, DETOKENIZE = "/tokenize", "/detokenize"
PARSERS: dict[str, Callable[[bytes, ModelCard], object]] = {
    CHAT: parse_chat,
    COMPLETION: parse_completion,
    GENERATE: parse_generate,
    TOKENIZE: tokenize,
    DETOKENIZE: detokenize,
}
USER = {"role": "user", "content": "abc"}
TOOL = {"type": "function", "function": {"name": "f"}}
JSON_SCHEMA = {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}}


@cache
def card(*, capable: bool = False) -> ModelCard:
    scripted = ScriptedApp(name="m", max_seq_len=CONTEXT).card
    if not capable:
        return scripted
    every: tuple[Capability, ...] = get_args(Capability)
    return replace(scripted, capabilities=frozenset(every), call_grammar=call_grammar)


def call_grammar(_tools: Sequence[Tool], _several: bool) -> str:
    return 'start: "f"'


@cache
def validator(path: str, *, capable: bool) -> Draft202012Validator:
    described = describe_api(card(capable=capable))
    content = described["paths"][path]["post"]["requestBody"]["content"]
    schema = content["application/json"]["schema"]
    return Draft202012Validator(schema | {"components": described["components"]})


def described(path: str, body: Body, *, capable: bool) -> bool:
    return validator(path, capable=capable).is_valid(body)


def taken(path: str, body: Body, *, capable: bool) -> bool:
    try:
        PARSERS[path](json.dumps(body).encode(), card(capable=capable))
    except TilertStreamError:
        return False
    return True


def chat(**fields: Any) -> Body:
    return {"messages": [USER], **fields}


def message(**fields: Any) -> Body:
    return {"messages": [fields]}


def text(**fields: Any) -> Body:
    return {"prompt": "abc", **fields}


def tokens(sampling: Body | None = None, **fields: Any) -> Body:
    return {"token_ids": [1], "sampling_params": sampling or {}, **fields}


CALL = {"function": {"name": "f", "arguments": "{}"}}

PLAIN: tuple[tuple[str, Body, bool], ...] = (
    # Names and ids that exist.
    (CHAT, chat(model="m"), True),
    (CHAT, chat(model=None), True),
    (CHAT, chat(model="other"), False),
    (TOKENIZE, text(model="other"), False),
    (DETOKENIZE, {"tokens": []}, True),
    (DETOKENIZE, {"tokens": [0, VOCABULARY - 1]}, True),
    (DETOKENIZE, {"tokens": [VOCABULARY]}, False),
    (DETOKENIZE, {"tokens": [-1]}, False),
    (CHAT, chat(stop_token_ids=[0]), True),
    (CHAT, chat(stop_token_ids=None), True),
    (CHAT, chat(stop_token_ids=[VOCABULARY]), False),
    (GENERATE, tokens({"stop_token_ids": [-1]}), False),
    (GENERATE, tokens(token_ids=[VOCABULARY]), False),
    (GENERATE, tokens(token_ids=[]), False),
    (GENERATE, tokens(token_ids=[1] * (CONTEXT - 1)), True),
    (GENERATE, tokens(token_ids=[1] * CONTEXT), False),
    (GENERATE, tokens(output_mode="tokens"), True),
    (GENERATE, tokens(output_mode=""), False),
    (GENERATE, tokens(features={}), False),
    (GENERATE, tokens({"echo": False}), True),
    (GENERATE, tokens({"echo": True}), False),
    (GENERATE, tokens({"response_format": {"type": "text"}}), False),
    (GENERATE, tokens({"suffix": "a"}), False),
    # Messages.
    (CHAT, message(role="user"), False),
    (CHAT, message(role="tool", content=None), False),
    (CHAT, {"messages": [USER, {"role": "assistant"}]}, True),
    (CHAT, {"messages": [USER, {"role": "assistant", "content": None}]}, True),
    (CHAT, {"messages": [USER, {"role": "assistant", "tool_calls": [CALL]}]}, True),
    (CHAT, message(**USER, tool_calls=[CALL]), False),
    (CHAT, message(**USER, tool_calls=[]), True),
    (CHAT, message(**USER, function_call={}), False),
    (CHAT, message(**USER, function_call=None, name="n"), True),
    (CHAT, message(role="user", content=[{"type": "text", "text": "a"}]), True),
    (CHAT, message(role="user", content=[{"type": "text"}]), False),
    (CHAT, message(role="user", content=[{"type": "image_url", "text": "a"}]), False),
    (CHAT, chat(chat_template_kwargs={"enable_thinking": False}), True),
    (CHAT, chat(chat_template_kwargs={"tools": []}), False),
    # Prompts.
    (COMPLETION, text(prompt=""), False),
    (COMPLETION, text(prompt=[]), False),
    (COMPLETION, text(prompt=["a", "b"]), True),
    (COMPLETION, text(prompt=["a", ""]), False),
    (COMPLETION, text(prompt=["a"] * 129), False),
    (COMPLETION, text(prompt=[1, 2]), True),
    (COMPLETION, text(prompt=[1, VOCABULARY]), False),
    (COMPLETION, text(prompt=[[1], [2]]), True),
    (COMPLETION, text(prompt=[[1], []]), False),
    (TOKENIZE, text(prompt=""), True),
    (TOKENIZE, text(messages=[USER]), False),
    (TOKENIZE, chat(), True),
    (TOKENIZE, chat(chat_template=""), True),
    (TOKENIZE, chat(chat_template="x"), False),
    (TOKENIZE, chat(continue_final_message=True), False),
    # Fields that need or exclude each other.
    (CHAT, chat(stream_options={"include_usage": True}), False),
    (CHAT, chat(stream_options={"include_usage": True}, stream=True), True),
    (CHAT, chat(stream_options={"include_usage": None}, stream=False), False),
    (CHAT, chat(stream_options={}), True),
    (CHAT, chat(stream_options=None), True),
    (GENERATE, tokens(stream_options={"continuous_usage_stats": True}), False),
    (GENERATE, tokens({"stream_options": {"include_usage": True}}), True),
    (TOKENIZE, chat(stream_options={"include_usage": True}), True),
    # What no context holds.
    (CHAT, chat(max_tokens=CONTEXT), False),
    (CHAT, chat(max_tokens=CONTEXT, max_completion_tokens=None), False),
    (CHAT, chat(max_tokens=CONTEXT, max_completion_tokens=9), True),
    (CHAT, chat(max_completion_tokens=CONTEXT), False),
    (CHAT, chat(min_tokens=CONTEXT), False),
    (COMPLETION, text(max_tokens=CONTEXT), False),
    (COMPLETION, text(min_tokens=17), False),
    (COMPLETION, text(min_tokens=17, max_tokens=20), True),
    (GENERATE, tokens({"max_tokens": CONTEXT}), False),
    (CHAT, chat(top_k=2**64 - 1), True),
    (CHAT, chat(top_k=2**64), False),
    # What the engine cannot do.
    (CHAT, chat(logit_bias={}), True),
    (CHAT, chat(logit_bias={"1": 2}), False),
    (CHAT, chat(response_format={"type": "text"}), True),
    (CHAT, chat(response_format={"type": "json_object"}), False),
    (CHAT, chat(tool_choice="required"), False),
    (COMPLETION, text(logprobs=1), False),
)

CAPABLE: tuple[tuple[str, Body, bool], ...] = (
    (CHAT, chat(top_logprobs=2), False),
    (CHAT, chat(top_logprobs=2, logprobs=True), True),
    (CHAT, chat(top_logprobs=0), True),
    (COMPLETION, text(prompt_logprobs=1), True),
    (COMPLETION, text(prompt_logprobs=1, stream=True), False),
    (GENERATE, tokens({"prompt_logprobs": 1}, stream=True), False),
    (GENERATE, tokens({"prompt_logprobs": 1}), True),
    (GENERATE, tokens({"response_format": {}}), True),
    (CHAT, chat(response_format={"type": "json_object"}), True),
    (CHAT, chat(response_format={"type": "xml"}), False),
    (CHAT, chat(response_format={}), False),
    (CHAT, chat(response_format=JSON_SCHEMA), True),
    (CHAT, chat(response_format={"type": "json_schema"}), False),
    (CHAT, chat(response_format=JSON_SCHEMA, min_tokens=2), False),
    (CHAT, chat(response_format=JSON_SCHEMA, min_tokens=0), True),
    (CHAT, chat(structured_outputs={"regex": "a"}), True),
    (CHAT, chat(structured_outputs={"regex": "a", "json": None}), True),
    (CHAT, chat(structured_outputs={"regex": "a", "json": {}}), False),
    (CHAT, chat(structured_outputs={}), False),
    (CHAT, chat(structured_outputs={"json_object": True}), True),
    (CHAT, chat(structured_outputs={"json_object": False}), False),
    (CHAT, chat(structured_outputs={"choice": ["a", ""]}), False),
    (CHAT, chat(structured_outputs={"regex": "a"}, ignore_eos=True), False),
    (CHAT, chat(structured_outputs={"regex": "a"}, response_format={"type": "text"}), True),
    (CHAT, chat(structured_outputs={"regex": "a"}, response_format=JSON_SCHEMA), False),
    (CHAT, chat(tool_choice="required"), False),
    (CHAT, chat(tool_choice="required", tools=[TOOL]), True),
    (CHAT, chat(tool_choice="some", tools=[TOOL]), False),
    (CHAT, chat(tool_choice=TOOL, tools=[TOOL]), True),
    (CHAT, chat(tool_choice={"type": "function"}, tools=[TOOL]), False),
    (CHAT, chat(tool_choice="required", tools=[TOOL], response_format=JSON_SCHEMA), False),
    (CHAT, chat(tool_choice="required", tools=[TOOL], ignore_eos=True), False),
)


@pytest.mark.parametrize(("path", "body", "valid"), PLAIN)
def test_what_is_valid_is_taken(path: str, body: Body, *, valid: bool) -> None:
    assert taken(path, body, capable=False) is valid
    assert described(path, body, capable=False) is valid


@pytest.mark.parametrize(("path", "body", "valid"), CAPABLE)
def test_what_is_valid_for_a_capable_model_is_taken(path: str, body: Body, *, valid: bool) -> None:
    assert taken(path, body, capable=True) is valid
    assert described(path, body, capable=True) is valid


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize(
    ("path", "body"), [(CHAT, chat(n=1)), (COMPLETION, text(n=1)), (GENERATE, tokens())]
)
async def test_every_event_is_as_described(
    request_to: Request, path: str, body: Body, n: int
) -> None:
    app = ScriptedApp(name="m", max_seq_len=CONTEXT)
    document = describe_api(app.card)
    content = document["paths"][path]["post"]["responses"]["200"]["content"]
    event = content["text/event-stream"]["schema"]
    done, chunk = event["properties"]["data"]["anyOf"]
    schema = Draft202012Validator(chunk["contentSchema"] | {"components": document["components"]})
    streamed = {"stream": True, "stream_options": {"include_usage": True}}
    many = {"sampling_params": {"n": n}} if path == GENERATE else {"n": n}
    async with app.lifespan():
        answer = await request_to(app, path, body | streamed | many).run()
    assert answer.content.endswith(f"data: {done['const']}\n\n".encode())
    assert answer.events
    for each in answer.events:
        schema.validate(each)
    assert not schema.is_valid({"choices": []})
