"""What a request may ask for, and what it leaves behind."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import anyio
import anyio.lowlevel
import orjson
import pytest

from tests.cases.asking import EOS, ByteApp, Said, ask, exchange, says
from tilert_engine.scripted import Script
from tilert_stream.errors import EngineFault
from tilert_stream.lease import Ledger
from tilert_stream.openai.chat import parse_chat
from tilert_stream.openai.completions import parse_completion
from tilert_stream.openai.envelope import Endpoint, Envelope
from tilert_stream.openai.parameters import PARAMETERS, Parameter
from tilert_stream.serve.request_options import ENGINE_CAPABILITIES

both = pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])

HI = {"messages": [{"role": "user", "content": "hi"}]}
TEMPLATE = (
    "{{ messages[0].content }}{{ reasoning_effort or '' }}{{ mood or '' }}{{ tools or '' }}"
    "{% if add_generation_prompt %}>{% endif %}"
)

TOOLS = [{"type": "function", "function": {"name": "weather"}}]

EFFECTS: dict[str, dict[str, Any]] = {
    "model": {"model": "alias"},
    "messages": {"messages": [{"role": "user", "content": "ho"}]},
    "prompt": {"prompt": "ho"},
    "stream": {"stream": True},
    "stream_options": {"stream": True, "stream_options": {"include_usage": True}},
    "max_completion_tokens": {"max_completion_tokens": 7},
    "max_tokens": {"max_tokens": 7},
    "min_tokens": {"min_tokens": 2},
    "stop": {"stop": "E"},
    "stop_token_ids": {"stop_token_ids": [10]},
    "include_stop_str_in_output": {"include_stop_str_in_output": True},
    "ignore_eos": {"ignore_eos": True},
    "skip_special_tokens": {"skip_special_tokens": False},
    "temperature": {"temperature": 0.5},
    "top_p": {"top_p": 0.5},
    "top_k": {"top_k": 5},
    "min_p": {"min_p": 0.5},
    "seed": {"seed": 5},
    "add_generation_prompt": {"add_generation_prompt": False},
    "chat_template_kwargs": {"chat_template_kwargs": {"mood": "glad"}},
    "reasoning_effort": {"reasoning_effort": "low"},
    "include_reasoning": {"include_reasoning": False},
    "tools": {"tools": TOOLS},
    "tool_choice": {"tools": TOOLS, "tool_choice": "none"},
    "parallel_tool_calls": {"parallel_tool_calls": False},
    "presence_penalty": {"presence_penalty": 0.5},
    "frequency_penalty": {"frequency_penalty": 0.5},
    "repetition_penalty": {"repetition_penalty": 1.5},
    "logit_bias": {"logit_bias": {"5": 2}},
    "n": {"n": 2},
    "prompt_logprobs": {"prompt_logprobs": 1},
    "return_token_ids": {"return_token_ids": True},
    "return_tokens_as_token_ids": {"return_tokens_as_token_ids": True},
    "response_format": {"response_format": {"type": "json_object"}},
    "structured_outputs": {"structured_outputs": {"choice": ["a", "b"]}},
}
"""Of every served field: a request in which it has to show."""

SAID = {"messages": [*HI["messages"], {"role": "assistant", "content": "so"}]}
CHAT_EFFECTS: dict[str, dict[str, Any]] = {
    "logprobs": {"logprobs": True},
    "top_logprobs": {"logprobs": True, "top_logprobs": 2},
    "echo": {"echo": True} | SAID,
}
COMPLETION_EFFECTS: dict[str, dict[str, Any]] = {
    "logprobs": {"logprobs": 2},
    "echo": {"echo": True},
}

SEEN_BY_THE_TOKENIZER_ALONE = {"add_special_tokens"}
"""BYTE puts nothing around a prompt; what the field does there is a test of its own."""


def comes_to(kind: Endpoint, fields: dict[str, Any]) -> object:
    """All that the server reads out of a request, but for the id it makes."""
    card = replace(
        ByteApp(template=TEMPLATE).card,
        names=("byte", "alias"),
        capabilities=ENGINE_CAPABILITIES | {"tools"},
    )
    default: dict[str, Any] = HI if kind == "chat" else {"prompt": "hi"}
    parse = parse_chat if kind == "chat" else parse_completion
    request, envelope = parse(orjson.dumps(default | fields), card)
    assert isinstance(envelope, Envelope)
    return (
        replace(request, id=""),
        envelope.model,
        envelope.stream,
        envelope.include_usage,
        envelope.continuous_usage,
        envelope.include_reasoning,
        envelope.choices,
        envelope.token_ids,
        envelope.tokens_as_ids,
        envelope.echo,
    )


KNOWN = [
    pytest.param(parameter, kind, id=f"{kind}-{parameter.name}")
    for parameter in PARAMETERS
    for kind in parameter.endpoints
    if parameter.name not in SEEN_BY_THE_TOKENIZER_ALONE
]


@pytest.mark.parametrize(("parameter", "kind"), KNOWN)
async def test_pd_20_served_refused_or_inert(parameter: Parameter, kind: Endpoint) -> None:
    if parameter.answer == "served":
        own = CHAT_EFFECTS if kind == "chat" else COMPLETION_EFFECTS
        effect = (EFFECTS | own)[parameter.name]
        without = {name: value for name, value in effect.items() if name != parameter.name}
        assert comes_to(kind, effect) != comes_to(kind, without), "it shows"
        return
    # A list asks for something, whatever the field.
    fields: dict[str, Any] = {parameter.name: [3]}
    if parameter.answer == "inert":
        assert comes_to(kind, fields) == comes_to(kind, {})
        assert parameter.note
        return
    chunks: list[int] = []
    app = ByteApp(Script(before_chunk=chunks.append))
    asked = exchange(app, ({"prompt": "hi"} if kind == "completion" else {}) | fields)
    async with app.lifespan():
        await asked.run()
    error = asked.json["error"]
    assert (asked.status, error["param"]) == (400, parameter.name)
    assert error["code"] == "unsupported_parameter"
    assert chunks == []


@pytest.mark.parametrize("kind", ["chat", "completion"])
def test_pd_20_unknown_fields_change_nothing(kind: Endpoint) -> None:
    assert comes_to(kind, {"no_such_field": [1]}) == comes_to(kind, {})


@both
async def test_pd_07_one_token_and_json_mode(stream: bool) -> None:
    """An engine without a grammar refuses JSON mode by name; one token alone is served."""
    app = ByteApp()
    async with app.lifespan():
        fields = {"max_tokens": 1, "response_format": {"type": "json_object"}}
        asked = exchange(app, fields, stream=stream)
        await asked.run()
        assert (asked.status, asked.json["error"]["param"]) == (400, "response_format")
        assert await ask(app, {"max_tokens": 1}, stream=stream) == Said("a", "length", 1)
        assert app.service.ledger.counts == {}
    assert app.decode_engine.busy == {}


@both
async def test_pd_15_several_prompts_have_answers_side_by_side(stream: bool) -> None:
    app = ByteApp(slots=2)
    fields = {"prompt": [[97, 98, 99], [120, 121]], "n": 2, "max_tokens": 4, "echo": True}
    asked = exchange(app, fields, stream=stream)
    async with app.lifespan():
        await asked.run()
        assert app.service.ledger.counts == {}
    bodies = asked.chunks if stream else [asked.json]
    texts = dict.fromkeys(range(4), "")
    for body in bodies:
        for choice in body["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts == {0: "abcabca", 1: "abcabca", 2: "xyxyxy", 3: "xyxyxy"}
    usage = {"prompt_tokens": 5, "completion_tokens": 16, "total_tokens": 21}
    assert bodies[-1]["usage"] == usage


REFUSED_BY_NAME = [
    pytest.param({"logprobs": True, "top_logprobs": 2}, "logprobs", id="pd-16-chat"),
    pytest.param({"prompt": "a", "logprobs": 2}, "logprobs", id="pd-16-completion"),
    pytest.param(
        {"response_format": {"type": "json_object"}}, "response_format", id="pd-18-json-object"
    ),
    pytest.param({"structured_outputs": {"regex": "a+"}}, "structured_outputs", id="pd-18-regex"),
]


@both
@pytest.mark.parametrize(("fields", "param"), REFUSED_BY_NAME)
async def test_pd_16_and_pd_18_are_refused_before_prefill(
    fields: dict[str, Any], param: str, stream: bool
) -> None:
    """No log-probability is invented, and no answer is said to keep to a grammar."""
    chunks: list[int] = []
    app = ByteApp(Script(before_chunk=chunks.append))
    asked = exchange(app, fields, stream=stream)
    async with app.lifespan():
        await asked.run()
    error = asked.json["error"]
    assert (asked.status, error["param"]) == (400, param)
    assert error["code"] == "unsupported_parameter"
    assert chunks == []


@both
async def test_pd_21_nothing_of_a_request_stays_in_its_slot(stream: bool) -> None:
    app = ByteApp(Script(token=says(b"ab", EOS, b"cdS")))
    sticky: dict[str, Any] = {"ignore_eos": True, "seed": 1, "stop": "S", "min_tokens": 3}
    async with app.lifespan():
        for _ in range(2):
            said = await ask(app, sticky | {"max_tokens": 9}, stream=stream)
            assert said == Said("abcd", "stop", 6, "S")
            assert await ask(app, {"max_tokens": 9}, stream=stream) == Said("ab", "stop", 3)


class NeverNegative(Ledger):
    """A ledger that is looked at whenever something goes back."""

    def give(self, kind: str) -> None:
        super().give(kind)
        assert all(count > 0 for count in self.counts.values()), self.counts


@pytest.mark.parametrize("count", [300, pytest.param(10_000, marks=pytest.mark.soak)])
async def test_pd_23_counters_return_to_zero(count: int) -> None:
    """Faults at every step, clients that leave in between: held things are given back once."""
    chance = random.Random(count)

    def may_fail(_number: int) -> None:
        if chance.random() < 0.1:
            raise EngineFault("by chance")

    script = Script(chunks=2, before_chunk=may_fail, before_import=may_fail, before_chain=may_fail)
    app = ByteApp(script, slots=3)
    app.service.ledger = NeverNegative()
    outcomes: set[int] = set()

    async def one(asked_for: int, leaves_after: int | None, stream: bool) -> None:
        fields = {"max_tokens": asked_for, "n": chance.choice([1, 1, 2])}
        asked = exchange(app, fields, stream=stream)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(asked.run)
            if leaves_after is not None:
                for _ in range(leaves_after):
                    await anyio.lowlevel.checkpoint()
                asked.leave()
        outcomes.add(asked.status if asked.sent else 499)

    async with app.lifespan():
        for _ in range(count // 10):
            async with anyio.create_task_group() as tasks:
                for _ in range(10):
                    leaves = chance.choice([None, 0, 1, 5, 30])
                    tasks.start_soon(one, chance.randint(1, 9), leaves, chance.random() < 0.5)
            assert app.service.ledger.counts == {}
        assert outcomes == {200, 499, 500}
    assert app.decode_engine.busy == {}
