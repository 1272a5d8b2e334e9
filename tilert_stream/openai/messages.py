"""The ``messages`` of a chat in, what a chat template reads out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, Required

from pydantic import ConfigDict, Discriminator, Field, Tag, with_config
from typing_extensions import TypedDict  # pydantic takes typing's from Python 3.12 on

from ..errors import InvalidRequest, UnsupportedParameter
from .describe import describe
from .tools import ToolCall, parse_arguments
from .validation import WireModel

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ("ContentPart", "Message", "template_messages")


class ContentPart(WireModel):
    """One part of a message's content."""

    type: str
    text: str | None = None


def _content_shape(value: object) -> str | None:
    if isinstance(value, str):
        return "<string>"
    return "<parts>" if isinstance(value, list) else None


Content = Annotated[
    Annotated[str, Tag("<string>")]
    | Annotated[list[ContentPart], Field(fail_fast=True), Tag("<parts>")],
    Discriminator(
        _content_shape,
        custom_error_type="content_shape",
        custom_error_message="a string or a list of content parts",
    ),
]


@with_config(ConfigDict(extra="allow", strict=True))
class Message(TypedDict, total=False):
    """One message. Members that are not declared here reach the template as they are.

    A dict and no model: a body may have thousands, and a model of each takes three times as long.
    """

    role: Required[Literal["system", "developer", "user", "assistant", "tool"]]
    content: Content | None
    tool_calls: Annotated[list[ToolCall], Field(fail_fast=True)] | None
    function_call: object


def template_messages(messages: Sequence[Message]) -> list[dict[str, object]]:
    """``messages`` with their content as strings; text parts are joined by a line feed, as in vLLM.

    Reasoning goes by the name that templates read it by, ``reasoning_content``.

    :raises ~tilert_stream.errors.InvalidRequest: a message has no content, or a call's arguments
        are no JSON object.
    :raises ~tilert_stream.errors.UnsupportedParameter: a part is no text, or ``function_call``.
    """
    return [
        dict(message)
        # A role and a text, as nearly all of them are: there is nothing to look after.
        if len(message) == 2 and isinstance(message.get("content"), str)
        else _plain(message, f"messages[{index}]")
        for index, message in enumerate(messages)
    ]


def _plain(message: Message, param: str) -> dict[str, object]:
    plain: dict[str, object] = {name: value for name, value in message.items() if value is not None}
    if "function_call" in plain:
        raise UnsupportedParameter(
            f"{param}.function_call is {describe(plain['function_call'])}; it is superseded: send"
            " tool_calls",
            param=f"{param}.function_call",
        )
    if "reasoning" in plain:
        plain.setdefault("reasoning_content", plain["reasoning"])
    plain["content"] = _text(message, f"{param}.content")
    calls = message.get("tool_calls")
    plain.pop("tool_calls", None)
    if calls:
        if message["role"] != "assistant":
            raise InvalidRequest(
                f"{param}.tool_calls belongs to a message of role {message['role']!r}; only an"
                " assistant calls tools: leave it out",
                param=f"{param}.tool_calls",
            )
        plain["tool_calls"] = [
            _plain_call(call, f"{param}.tool_calls[{index}]") for index, call in enumerate(calls)
        ]
    return plain


def _plain_call(call: ToolCall, param: str) -> dict[str, object]:
    arguments = parse_arguments(call.function.arguments, f"{param}.function.arguments")
    plain: dict[str, object] = {} if call.id is None else {"id": call.id}
    return plain | {
        "type": "function",
        "function": {"name": call.function.name, "arguments": arguments},
    }


def _text(message: Message, param: str) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    if content is None:
        # An assistant's turn may be empty; anybody else's without content is a client's mistake.
        if message["role"] == "assistant":
            return ""
        raise InvalidRequest(
            f"{param} is missing or null; a message of role {message['role']!r} needs it",
            param=param,
        )
    return "\n".join(_part_text(part, f"{param}[{n}]") for n, part in enumerate(content))


def _part_text(part: ContentPart, param: str) -> str:
    if part.type != "text":
        raise UnsupportedParameter(
            f"{param}.type is {describe(part.type)}; this server reads only parts of type"
            ' "text": send text, or a model that takes other input',
            param=f"{param}.type",
        )
    if part.text is None:
        raise InvalidRequest(
            f'{param}.text is missing or null; a part of type "text" needs it',
            param=f"{param}.text",
        )
    return part.text
