"""The body of ``POST /v1/chat/completions`` in, ``GenerateRequest`` and ``Envelope`` out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from pydantic import Field

from ..errors import InvalidRequest
from ..events import OutputFormat
from .body import parse_object
from .build import Budget, build, check_model
from .describe import describe
from .fields import LOGPROBS_MAX, CommonRequest
from .grammar import answer_grammar
from .messages import Message, template_messages
from .parameters import check_parameters
from .tool_choice import force_call
from .tools import ToolDefinition, read_tools
from .validation import validate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..model.card import ModelCard
    from .build import Parsed

__all__ = ("ChatRequest", "chat_prompt", "parse_chat", "read_chat")

RESERVED: Final = frozenset(
    {"messages", "add_generation_prompt", "tools", "documents", "raise_exception", "strftime_now"}
)
"""Template variables that have a field of their own, or are the template's tools."""

PROMPT_TAIL: Final = 64
"""Characters of the prompt's end that an output parser looks at: more than any marker has."""


class ChatRequest(CommonRequest):
    """What a chat may say; the rest is declared in ``parameters``."""

    messages: list[Message] = Field(min_length=1, fail_fast=True)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, object] | None = None
    reasoning_effort: str | None = None
    include_reasoning: bool | None = None
    tools: Annotated[list[ToolDefinition], Field(fail_fast=True)] | None = None
    tool_choice: str | dict[str, object] | None = None
    parallel_tool_calls: bool | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=LOGPROBS_MAX)


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
    check_model(wire.model, card)
    check_parameters(raw, "chat", card.capabilities)
    calls = _may_call(wire)
    prompt = chat_prompt(wire, raw, card)
    tools = read_tools(wire.tools) if wire.tools and calls else ()
    several = wire.parallel_tool_calls is not False
    forced = force_call(wire.tool_choice, tools, card, several=several)
    grammar = answer_grammar(wire.response_format, wire.structured_outputs)
    if forced is not None and grammar is not None:
        raise InvalidRequest(
            f"tool_choice is {describe(wire.tool_choice)}, and the answer is to keep to a format"
            " beside; leave one of them out",
            param="tool_choice",
        )
    if forced is not None:
        grammar = forced.grammar
    # The template writes the model's own tokens, the beginning of the text included.
    add_special_tokens = wire.add_special_tokens is True
    return build(
        wire,
        card,
        kind="chat",
        prompt_ids=card.tokenizer.encode(prompt, add_special_tokens=add_special_tokens),
        prompt_param="messages",
        budget=_budget(wire),
        output=OutputFormat(
            # A grammar has no reasoning, even where the template has begun some.
            prompt[-PROMPT_TAIL:] if grammar is None else "",
            tools,
            parallel_calls=several,
            named_call=forced is not None and forced.named,
        ),
        logprobs=_logprobs(wire),
        grammar=grammar,
        echo=_echo(wire),
        include_reasoning=wire.include_reasoning is not False,
    )


def _may_call(wire: ChatRequest) -> bool:
    # A model that must not call gets to know of no tool, and its answer is not searched for calls.
    return bool(wire.tools) and wire.tool_choice != "none"


def chat_prompt(wire: ChatRequest, raw: Mapping[str, object], card: ModelCard) -> str:
    """The text that the model's chat template makes of ``wire``.

    :param raw: the same body as it came: templates get tools as the client spelled them.
    :raises ~tilert_stream.errors.InvalidRequest: there is no template, or it refuses the messages.
    """
    if card.chat_template is None:
        raise InvalidRequest(
            f"the model {wire.model or card.names[0]} has no chat template; use /v1/completions",
            param="messages",
        )
    return card.chat_template.render(
        template_messages(wire.messages),
        add_generation_prompt=wire.add_generation_prompt is not False,
        tools=raw["tools"] if _may_call(wire) else None,
        **_template_kwargs(wire),
    )


def _logprobs(wire: ChatRequest) -> int | None:
    if not wire.logprobs:
        if wire.top_logprobs:
            raise InvalidRequest(
                f"top_logprobs is {wire.top_logprobs} and logprobs is not true; send logprobs:"
                " true, or leave top_logprobs out",
                param="top_logprobs",
            )
        return None
    return wire.top_logprobs or 0


def _echo(wire: ChatRequest) -> str:
    """The last message, if the answer goes on in its role."""
    last = wire.messages[-1]
    if not wire.echo or last["role"] != "assistant":
        return ""
    return str(template_messages([last])[0]["content"])


def _template_kwargs(wire: ChatRequest) -> dict[str, object]:
    if not wire.chat_template_kwargs and wire.reasoning_effort is None:
        return {}
    kwargs = dict(wire.chat_template_kwargs or {})
    if wire.reasoning_effort is not None:
        kwargs.setdefault("reasoning_effort", wire.reasoning_effort)
        # The switches of Qwen's and GLM's templates, and of DeepSeek's.
        for switch in ("enable_thinking", "thinking"):
            kwargs.setdefault(switch, wire.reasoning_effort != "none")
    reserved = RESERVED & kwargs.keys()
    if reserved:
        param = f"chat_template_kwargs.{min(reserved)}"
        raise InvalidRequest(f"{param} cannot be set here; leave it out", param=param)
    return kwargs


def _budget(wire: ChatRequest) -> Budget:
    if wire.max_completion_tokens is not None:
        return Budget("max_completion_tokens", wire.max_completion_tokens)
    return Budget("max_tokens", wire.max_tokens)
