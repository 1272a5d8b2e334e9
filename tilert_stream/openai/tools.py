"""The ``tools`` of a chat in, what an output parser and a chat template must know of them out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import orjson
from pydantic import Field

from ..errors import InvalidRequest
from ..events import Tool
from .describe import describe
from .validation import WireModel

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = (
    "FunctionCall",
    "FunctionDefinition",
    "JSONArguments",
    "ToolCall",
    "ToolDefinition",
    "parse_arguments",
    "read_tools",
)


class FunctionDefinition(WireModel):
    """What can be called."""

    name: str = Field(min_length=1)
    parameters: dict[str, object] | None = None


class ToolDefinition(WireModel):
    """One of ``tools``. The template gets it as the client wrote it."""

    type: Literal["function"]
    function: FunctionDefinition


class FunctionCall(WireModel):
    """What was called."""

    name: str = Field(min_length=1)
    arguments: str | None = None


class ToolCall(WireModel):
    """One of an assistant's ``tool_calls``."""

    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionCall


class JSONArguments(dict[str, object]):
    """A call's arguments for a chat template.

    An object for templates that walk it or dump it; the client's own JSON text for those that put
    it into a string.
    """

    def __init__(self, text: str, members: dict[str, object]) -> None:
        super().__init__(members)
        self._text = text

    def __str__(self) -> str:
        return self._text

    def __add__(self, other: object) -> str:
        return self._text + str(other)

    def __radd__(self, other: object) -> str:
        return str(other) + self._text


def read_tools(tools: Sequence[ToolDefinition]) -> tuple[Tool, ...]:
    """What a parser needs of them.

    :raises ~tilert_stream.errors.InvalidRequest: two have one name.
    """
    read: dict[str, Tool] = {}
    for index, tool in enumerate(tools):
        name = tool.function.name
        if name in read:
            param = f"tools[{index}].function.name"
            raise InvalidRequest(
                f"{param} is {describe(name)}, as that of an earlier tool; each needs a name of its"
                " own: rename one",
                param=param,
            )
        param = f"tools[{index}].function.parameters"
        read[name] = Tool(name, tool.function.parameters or {}, param)
    return tuple(read.values())


def parse_arguments(text: str | None, param: str) -> JSONArguments:
    """A call's ``arguments``; absent or empty is a call without any.

    :raises ~tilert_stream.errors.InvalidRequest: they are no JSON object.
    """
    if not text or not text.strip():
        return JSONArguments("{}", {})
    try:
        value: object = orjson.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise InvalidRequest(
            f"{param} is {describe(text)}; it must be a JSON object as text, or empty", param=param
        )
    members: dict[str, object] = dict(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType] - JSON has no other keys
    return JSONArguments(text, members)
