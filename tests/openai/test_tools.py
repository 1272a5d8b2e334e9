"""Tools, calls and their results on the way in."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from tilert_stream.errors import InvalidRequest, TilertStreamError, UnsupportedParameter
from tilert_stream.events import Capability, Tool
from tilert_stream.model.card import ModelCard
from tilert_stream.model.chat_template import ChatTemplate
from tilert_stream.openai.chat import parse_chat
from tilert_stream.openai.objects import model_list
from tilert_stream.parsers.call_rules import json_call_rule
from tilert_stream.serve.request_options import ENGINE_CAPABILITIES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tilert_stream.openai.build import Parsed

HI: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}


def call(arguments: object, **fields: object) -> dict[str, Any]:
    function = {"name": "weather", "arguments": arguments}
    made = {"id": "call_1", "type": "function", "function": function} | fields
    return {"role": "assistant", "content": None, "tool_calls": [made]}


def parse(card: ModelCard, template: str, **fields: Any) -> Parsed:
    capable = replace(
        card,
        chat_template=ChatTemplate(template),
        capabilities=frozenset[Capability]({"tools"}),
    )
    return parse_chat(orjson.dumps({"messages": HI} | fields), capable)


def prompt(card: ModelCard, template: str, **fields: Any) -> str:
    return bytes(parse(card, template, **fields).request.prompt_ids).decode()


def refused(card: ModelCard, **fields: Any) -> TilertStreamError:
    with pytest.raises(TilertStreamError) as caught:
        parse(card, "{{ messages[0].content }}", **fields)
    return caught.value


def test_the_template_gets_the_tools_as_they_were_written(card: ModelCard) -> None:
    assert orjson.loads(prompt(card, "{{ tools | tojson }}", tools=[WEATHER])) == [WEATHER]


@pytest.mark.parametrize("fields", [{}, {"tools": []}, {"tools": None}])
def test_no_tools(card: ModelCard, fields: dict[str, Any]) -> None:
    template = "{{ tools is none }}"
    assert prompt(card, template, **fields) == "True"
    output = parse(card, template, **fields).request.output
    assert output is not None
    assert output.tools == ()


def test_tools_that_must_not_be_called_are_left_out(card: ModelCard) -> None:
    fields: dict[str, Any] = {"tools": [WEATHER], "tool_choice": "none"}
    assert prompt(card, "{{ tools is none }}", **fields) == "True"


def test_what_the_parser_gets(card: ModelCard) -> None:
    template = "{{ 'x' * 100 }}<think>"
    request, _ = parse(card, template, tools=[WEATHER], parallel_tool_calls=False)
    assert request.output is not None
    assert request.output.tools == (Tool("weather", PARAMETERS, "tools[0].function.parameters"),)
    assert request.output.prompt_tail.endswith("x<think>")
    assert len(request.output.prompt_tail) == 64
    assert not request.output.parallel_calls


ARGUMENTS = '{"city":  "Köln", "n": [1.50]}'
TEMPLATES = {
    "walks them": (
        "{% for k, v in call.arguments.items() %}{{ k }}={{ v }};{% endfor %}",
        "city=Köln;n=[1.5];",
    ),
    "dumps them": ("{{ call.arguments | tojson }}", '{"city": "Köln", "n": [1.5]}'),
    "asks what they are": (
        "{{ call.arguments is string }} {{ call.arguments is mapping }}",
        "False True",
    ),
    "prints them": ("{{ call.arguments }}", ARGUMENTS),
    "adds them to text": ("{{ 'a' + call.arguments + 'b' }}", f"a{ARGUMENTS}b"),
    "joins them to text": ("{{ 'a' ~ call.arguments }}", f"a{ARGUMENTS}"),
}


@pytest.mark.parametrize(("source", "right"), TEMPLATES.values(), ids=TEMPLATES.keys())
def test_arguments_for_every_kind_of_template(card: ModelCard, source: str, right: str) -> None:
    template = "{% set call = messages[0].tool_calls[0].function %}" + source
    assert prompt(card, template, messages=[call(ARGUMENTS)]) == right


@pytest.mark.parametrize("arguments", ["", " ", None])
def test_a_call_without_arguments(card: ModelCard, arguments: str | None) -> None:
    source = "{{ messages[0].tool_calls[0].function.arguments | tojson }}"
    assert prompt(card, source, messages=[call(arguments)]) == "{}"


def test_a_result(card: ModelCard) -> None:
    source = "{{ messages[0].role }} {{ messages[0].tool_call_id }} {{ messages[0].content }}"
    parts = [{"type": "text", "text": "sun"}, {"type": "text", "text": "ny"}]
    for content, right in (("sunny", "sunny"), (parts, "sun\nny")):
        result = {"role": "tool", "tool_call_id": "call_1", "content": content}
        assert prompt(card, source, messages=[result]) == f"tool call_1 {right}"


def test_reasoning_by_the_name_that_templates_know(card: ModelCard) -> None:
    source = "{{ messages[0].reasoning_content }}"
    for fields in (
        {"reasoning": "why"},
        {"reasoning_content": "why"},
        {"reasoning": "other", "reasoning_content": "why"},
    ):
        message = {"role": "assistant", "content": "so"} | fields
        assert prompt(card, source, messages=[message]) == "why"


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"tools": "weather"}, "tools"),
    ({"tools": [{}]}, "tools[0].type"),
    ({"tools": [{"type": "custom"}]}, "tools[0].type"),
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
    ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools[0].function.name"),
    ({"tools": [WEATHER, WEATHER]}, "tools[1].function.name"),
    ({"parallel_tool_calls": 1}, "parallel_tool_calls"),
    ({"include_reasoning": "no"}, "include_reasoning"),
    ({"messages": [{"role": "tool"}]}, "messages[0].content"),
    ({"messages": [call("{} {}")]}, "messages[0].tool_calls[0].function.arguments"),
    ({"messages": [call("[1]")]}, "messages[0].tool_calls[0].function.arguments"),
    ({"messages": [call({"a": 1})]}, "messages[0].tool_calls[0].function.arguments"),
    ({"messages": [call("{}", type="custom")]}, "messages[0].tool_calls[0].type"),
    ({"messages": [call("{}") | {"role": "user", "content": "x"}]}, "messages[0].tool_calls"),
]


@pytest.mark.parametrize(("fields", "param"), REFUSED)
def test_refused(card: ModelCard, fields: dict[str, Any], param: str) -> None:
    error = refused(card, **fields)
    assert (error.status, error.param) == (400, param)
    assert isinstance(error, InvalidRequest)


@pytest.mark.parametrize(
    "fields",
    [
        {"tool_choice": "required"},
        {"tool_choice": {"type": "function", "function": {"name": "weather"}}},
        {"tool_choice": "weather"},
        {"response_format": {"type": "json_object"}},
        {"functions": [{"name": "weather"}]},
    ],
)
def test_what_needs_a_grammar_or_is_superseded(card: ModelCard, fields: dict[str, Any]) -> None:
    error = refused(card, tools=[WEATHER], **fields)
    assert isinstance(error, UnsupportedParameter)
    assert error.param == next(iter(fields))


def test_tools_where_nothing_reads_calls(card: ModelCard) -> None:
    body = orjson.dumps({"messages": HI, "tools": [WEATHER]})
    with pytest.raises(UnsupportedParameter, match="output parser") as caught:
        parse_chat(body, card)
    assert caught.value.param == "tools"


def test_an_answer_that_is_held_to_a_grammar_is_no_reasoning(card: ModelCard) -> None:
    thinking = replace(
        card,
        chat_template=ChatTemplate("{{ messages[0].content }}<think>"),
        capabilities=ENGINE_CAPABILITIES,
    )
    tails: list[str] = []
    free: dict[str, Any] = {}
    for fields in (free, {"response_format": {"type": "json_object"}}):
        body = orjson.dumps({"messages": HI} | fields)
        request, _ = parse_chat(body, thinking)
        assert request.output is not None
        tails.append(request.output.prompt_tail)
    assert tails == ["hi<think>", ""]


def test_the_list_of_models_has_the_capabilities(card: ModelCard) -> None:
    capable = replace(card, capabilities=frozenset[Capability]({"tools"}))
    for each, right in ((card, ["min_p", "seed"]), (capable, ["tools"])):
        listed: Any = model_list([each])["data"]
        assert listed[0]["capabilities"] == right


def test_forced_parameters_deeper_than_can_be_written(card: ModelCard) -> None:
    """JSON may come 1,024 levels deep; Python's writer has less room than that."""

    def first_rule(tools: Sequence[Tool], _several: bool) -> str:
        return json_call_rule(tools[0])

    forcing = replace(
        card,
        chat_template=ChatTemplate("{{ messages[0].content }}"),
        capabilities=ENGINE_CAPABILITIES | {"tools"},
        call_grammar=first_rule,
    )
    flat = orjson.dumps({"messages": HI, "tool_choice": "required", "tools": [WEATHER]})
    assert parse_chat(flat, forcing).request.sampling.grammar is not None
    deep = b'{"anyOf":[' * 490 + b"{}" + b"]}" * 490
    with pytest.raises(InvalidRequest, match="deep") as caught:
        parse_chat(flat.replace(orjson.dumps(PARAMETERS), deep), forcing)
    assert caught.value.param == "tools"
