"""What answers look like, as pydantic types: for the API's description and for tests of answers.

Nothing is validated by them on the way out: answers are written by ``objects`` and ``chunks``.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

__all__ = (
    "AssistantMessage",
    "ChatChoice",
    "ChatChunk",
    "ChatCompletion",
    "Completion",
    "CompletionChunk",
    "DetokenizeAnswer",
    "ErrorAnswer",
    "ErrorObject",
    "GenerateAnswer",
    "GenerateChunk",
    "ModelList",
    "ModelObject",
    "TextChoice",
    "TokenChoice",
    "TokenizeAnswer",
    "Usage",
)


class _Answer(BaseModel):
    model_config = ConfigDict(extra="allow")


class Usage(_Answer):
    """Tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class AssistantMessage(_Answer):
    """The model's turn."""

    role: Literal["assistant"]
    content: str | None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[dict[str, object]] | None = None


class _Choice(_Answer):
    index: int
    finish_reason: Literal["stop", "length", "tool_calls", "content_filter"]
    stop_reason: int | str | None = None
    logprobs: dict[str, object] | None = None


class ChatChoice(_Choice):
    """One answer to a chat."""

    message: AssistantMessage


class TextChoice(_Choice):
    """One answer to a text."""

    text: str


class TokenChoice(_Choice):
    """One answer to token ids."""

    token_ids: list[int]


class ChatCompletion(_Answer):
    """The answer of ``/v1/chat/completions``."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class Completion(_Answer):
    """The answer of ``/v1/completions``."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage


class GenerateAnswer(_Answer):
    """The answer of ``/inference/v1/generate``."""

    request_id: str
    output_mode: Literal["tokens"]
    model: str
    created: int
    choices: list[TokenChoice]
    usage: Usage


class _ChunkChoice(_Answer):
    index: int
    finish_reason: Literal["stop", "length", "tool_calls", "content_filter"] | None
    stop_reason: int | str | None = None
    logprobs: dict[str, object] | None = None


class _DeltaChoice(_ChunkChoice):
    delta: dict[str, object]


class _TextPiece(_ChunkChoice):
    text: str


class _TokenPiece(_ChunkChoice):
    token_ids: list[int]


class _Chunk(_Answer):
    id: str
    created: int
    model: str
    usage: Usage | None = None


class ChatChunk(_Chunk):
    """One event of a chat's answer."""

    object: Literal["chat.completion.chunk"]
    choices: list[_DeltaChoice]


class CompletionChunk(_Chunk):
    """One event of a text's answer."""

    object: Literal["text_completion"]
    choices: list[_TextPiece]


class GenerateChunk(_Answer):
    """One event of an answer in token ids."""

    request_id: str
    output_mode: Literal["tokens"]
    choices: list[_TokenPiece]
    usage: Usage | None = None


class ModelObject(_Answer):
    """One name of a served model."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int
    capabilities: list[str]


class ModelList(_Answer):
    """The answer of ``/v1/models``."""

    object: Literal["list"]
    data: list[ModelObject]


class TokenizeAnswer(_Answer):
    """The answer of ``/tokenize``."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeAnswer(_Answer):
    """The answer of ``/detokenize``."""

    prompt: str


class ErrorObject(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorAnswer(BaseModel):
    """The body of every 4xx and 5xx."""

    error: ErrorObject
