"""A forced call is one that its tool allows, whatever the model would have said."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.e2e.told import Sides, tell

pytest.importorskip("llguidance")

both = pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])
sides_param = pytest.mark.parametrize("side", ["one", "split"])
parsers = pytest.mark.parametrize("parser", ["hermes", "glm47"])

CITY = {
    "type": "object",
    "properties": {
        "unit": {"type": "string", "enum": ["celsius", "kelvin"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["unit", "days"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": CITY}},
    {"type": "function", "function": {"name": "nothing", "parameters": {"type": "object"}}},
]
WEATHER = {"type": "function", "function": {"name": "weather"}}
DRAWN = {"tools": TOOLS, "temperature": 1.0, "max_tokens": 150}


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    """Both libraries; a second loop of asyncio's would show nothing of an engine."""
    return request.param


@pytest.fixture(scope="module")
def sides() -> Sides:
    return Sides()


@both
@sides_param
@parsers
async def test_a_named_function_is_called(
    sides: Sides, parser: str, side: str, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with sides.serving(side, monkeypatch, parser=parser) as app:
        free = await tell(app, {"tools": TOOLS}, stream=stream)
        assert free.only.calls == []
        fields = DRAWN | {"tool_choice": WEATHER, "seed": 2}
        told = await tell(app, fields, stream=stream)
        assert told.status == 200, told.error
        ((name, arguments),) = told.only.calls
        assert (name, told.only.finish_reason, told.only.text) == ("weather", "stop", "")
        given = json.loads(arguments)
        assert given["unit"] in ("celsius", "kelvin")
        assert 1 <= given["days"] <= 9


@both
@sides_param
@parsers
async def test_some_call_is_required(
    sides: Sides, parser: str, side: str, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with sides.serving(side, monkeypatch, parser=parser) as app:
        fields = DRAWN | {"tool_choice": "required", "parallel_tool_calls": False, "seed": 1}
        told = await tell(app, fields, stream=stream)
    assert told.status == 200, told.error
    ((name, arguments),) = told.only.calls
    assert name in ("weather", "nothing")
    assert isinstance(json.loads(arguments), dict)
    assert told.only.finish_reason == "tool_calls"


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": TOOLS, "tool_choice": "weather"}, "tool_choice"),
    ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "tool_choice"),
    (
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "rain"}}},
        "tool_choice.function.name",
    ),
    (
        {"tools": TOOLS, "tool_choice": WEATHER, "response_format": {"type": "json_object"}},
        "tool_choice",
    ),
]


@pytest.mark.parametrize(("fields", "param"), REFUSED, ids=range(len(REFUSED)))
async def test_a_choice_that_names_no_tool(
    sides: Sides, fields: dict[str, Any], param: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with sides.serving("one", monkeypatch, parser="hermes") as app:
        told = await tell(app, fields, stream=False)
    assert (told.status, told.error["param"]) == (400, param)


async def test_a_parser_that_writes_no_calls_forces_none(
    sides: Sides, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with sides.serving("one", monkeypatch, parser="deepseek") as app:
        fields = {"tools": TOOLS, "tool_choice": "required"}
        told = await tell(app, fields, stream=False)
    assert (told.status, told.error["code"]) == (400, "unsupported_parameter")
    assert told.error["param"] == "tool_choice"


@both
@sides_param
@parsers
async def test_parameters_that_cannot_be_followed_are_named(
    sides: Sides, parser: str, side: str, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "strin"}}}}
    tools = [*TOOLS, {"type": "function", "function": {"name": "wrong", "parameters": wrong}}]
    named = {"type": "function", "function": {"name": "wrong"}}
    async with sides.serving(side, monkeypatch, parser=parser) as app:
        for choice in ("required", named):
            fields = {"tools": tools, "tool_choice": choice}
            told = await tell(app, fields, stream=stream)
            assert told.status == 400
            assert told.error["param"] == "tools[2].function.parameters.properties.a.items"
            assert told.error["message"].startswith(told.error["param"])
        fine = await tell(app, {"tools": tools, "tool_choice": WEATHER}, stream=stream)
        assert fine.status == 200, fine.error
