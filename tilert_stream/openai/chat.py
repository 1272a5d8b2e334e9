"""The body of ``POST /v1/chat/completions`` in, ``GenerateRequest`` and ``Envelope`` out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pydantic import Field

from ..errors import InvalidRequest
from .body import parse_object
from .build import Budget, build, check_model
from .fields import CommonRequest
from .messages import Message, template_messages
from .parameters import check_parameters
from .validation import validate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..model.card import ModelCard
    from .build import Parsed

__all__ = ("ChatRequest", "parse_chat", "read_chat")

RESERVED: Final = frozenset(
    {"messages", "add_generation_prompt", "tools", "documents", "raise_exception", "strftime_now"}
)
"""Template variables that have a field of their own, or are the template's tools."""


class ChatRequest(CommonRequest):
    """What a chat may say; the rest is declared in ``parameters``."""

    messages: list[Message] = Field(min_length=1, fail_fast=True)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, object] | None = None
    reasoning_effort: str | None = None


def parse_chat(body: bytes, card: ModelCard) -> Parsed:
    """Read a request, and refuse it now if it can be told now.

    Synchronous, thread-safe, no I/O; tokenizing takes about a microsecond a byte.

    :raises ~tilert_stream.errors.TilertStreamError: of a kind with a 4xx status, and nothing else.
    """
    return read_chat(parse_object(body), card)


def read_chat(raw: Mapping[str, object], card: ModelCard) -> Parsed:
    """``parse_chat`` for a body that has been parsed.

    :raises ~tilert_stream.errors.TilertStreamError: of a kind with a 4xx status, and nothing else.
    """
    wire = validate(ChatRequest, raw)
    model = check_model(wire.model, card)
    check_parameters(raw, "chat")
    if card.chat_template is None:
        raise InvalidRequest(
            f"the model {model} has no chat template; use /v1/completions", param="messages"
        )
    prompt = card.chat_template.render(
        template_messages(wire.messages),
        add_generation_prompt=wire.add_generation_prompt is not False,
        **_template_kwargs(wire),
    )
    # The template writes the model's own tokens, the beginning of the text included.
    add_special_tokens = wire.add_special_tokens is True
    return build(
        wire,
        card,
        kind="chat",
        prompt_ids=card.tokenizer.encode(prompt, add_special_tokens=add_special_tokens),
        prompt_param="messages",
        budget=_budget(wire),
    )


def _template_kwargs(wire: ChatRequest) -> dict[str, object]:
    kwargs = dict(wire.chat_template_kwargs or {})
    if wire.reasoning_effort is not None:
        kwargs.setdefault("reasoning_effort", wire.reasoning_effort)
    reserved = RESERVED & kwargs.keys()
    if reserved:
        param = f"chat_template_kwargs.{min(reserved)}"
        raise InvalidRequest(f"{param} cannot be set here; leave it out", param=param)
    return kwargs


def _budget(wire: ChatRequest) -> Budget:
    if wire.max_completion_tokens is not None:
        return Budget("max_completion_tokens", wire.max_completion_tokens)
    return Budget("max_tokens", wire.max_tokens)
