"""What the Vercel AI SDK's OpenAI provider takes for an event of a streamed chat.

In: an event's JSON. Out: an error where that client would raise one. Written after
``openaiChatChunkSchema`` of the package ``@ai-sdk/openai``, each member as the strictest of its
releases has it: what must not be null has a default here, and what may be null is None.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, TypeAdapter


class _Function(BaseModel):
    name: str | None = None
    arguments: str | None = None


class _ToolCall(BaseModel):
    index: int
    id: str | None = None
    type: Literal["function"] = "function"
    function: _Function


class _Delta(BaseModel):
    role: Literal["assistant"] = "assistant"
    content: str | None = None
    tool_calls: list[_ToolCall] | None = None


class _Choice(BaseModel):
    delta: _Delta
    finish_reason: str | None = None
    index: int


class _Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int


class _Chunk(BaseModel):
    id: str | None = None
    created: int | None = None
    model: str | None = None
    choices: list[_Choice]
    usage: _Usage | None = None


class _ErrorData(BaseModel):
    message: str
    type: str | None = None
    param: Any = None
    code: str | int | None = None


class _Error(BaseModel):
    error: _ErrorData


_EVENT: TypeAdapter[_Chunk | _Error] = TypeAdapter(_Chunk | _Error)


def check_event(event: object) -> None:
    """Raise what that client would.

    :raises pydantic.ValidationError: it is neither a chunk nor an error.
    """
    _EVENT.validate_python(event, strict=True)
