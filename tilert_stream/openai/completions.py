"""The body of ``POST /v1/completions`` in, ``GenerateRequest`` and ``Envelope`` out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, TypeAlias, cast

from pydantic import Discriminator, Field, Tag

from ..errors import UnsupportedParameter
from .body import parse_object
from .build import Budget, build, check_ids, check_model
from .fields import LOGPROBS_MAX, CommonRequest
from .grammar import answer_grammar
from .parameters import check_parameters
from .validation import validate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..model.card import ModelCard
    from .build import Parsed

__all__ = ("CompletionRequest", "parse_completion", "read_completion")

MAX_TOKENS_DEFAULT: Final = 16
"""OpenAI's."""

Ids = Annotated[list[int], Field(fail_fast=True)]
Prompt: TypeAlias = "str | list[int] | list[str] | list[list[int]]"


def _prompt_shape(value: object) -> str | None:
    if isinstance(value, str):
        return "<text>"
    if not isinstance(value, list) or not value:
        return None
    first: object = cast("list[object]", value)[0]
    if isinstance(first, str):
        return "<texts>"
    return "<id lists>" if isinstance(first, list) else "<ids>"


class CompletionRequest(CommonRequest):
    """What a text completion may say; the rest is declared in ``parameters``."""

    prompt: Annotated[
        Annotated[str, Tag("<text>")]
        | Annotated[Ids, Tag("<ids>")]
        | Annotated[list[str], Field(fail_fast=True), Tag("<texts>")]
        | Annotated[list[Ids], Field(fail_fast=True), Tag("<id lists>")],
        Discriminator(
            _prompt_shape,
            custom_error_type="prompt_shape",
            custom_error_message="a string or a list of token ids",
        ),
    ]
    logprobs: int | None = Field(default=None, ge=0, le=LOGPROBS_MAX)


def parse_completion(body: bytes, card: ModelCard) -> Parsed:
    """Read a request, and refuse it now if it can be told now.

    Synchronous, thread-safe, no I/O; tokenizing takes about a microsecond a byte.

    :raises ~tilert_stream.errors.TilertStreamError: of a kind with a 4xx status, and nothing else.
    """
    return read_completion(parse_object(body), card)


def read_completion(raw: Mapping[str, object], card: ModelCard) -> Parsed:
    """``parse_completion`` for a body that has been parsed.

    :raises ~tilert_stream.errors.TilertStreamError: of a kind with a 4xx status, and nothing else.
    """
    wire = validate(CompletionRequest, raw)
    check_model(wire.model, card)
    check_parameters(raw, "completion", card.capabilities)
    prompt_ids = _prompt_ids(wire, card)
    return build(
        wire,
        card,
        kind="completion",
        prompt_ids=prompt_ids,
        prompt_param="prompt",
        budget=Budget("max_tokens", wire.max_tokens, MAX_TOKENS_DEFAULT),
        logprobs=wire.logprobs,
        grammar=answer_grammar(wire.response_format, wire.structured_outputs),
        echo=_echo(wire, prompt_ids, card),
    )


def _echo(wire: CompletionRequest, prompt_ids: tuple[int, ...], card: ModelCard) -> str:
    if not wire.echo:
        return ""
    if wire.logprobs is not None:
        raise UnsupportedParameter(
            "echo is true and logprobs is given: there are no log-probabilities of the prompt;"
            " leave one of them out",
            param="echo",
        )
    prompt, _ = _single(wire.prompt)
    if isinstance(prompt, str):
        return prompt
    return card.tokenizer.decode(prompt_ids, skip_special_tokens=False)


def _prompt_ids(wire: CompletionRequest, card: ModelCard) -> tuple[int, ...]:
    prompt, param = _single(wire.prompt)
    if isinstance(prompt, str):
        add_special_tokens = wire.add_special_tokens is not False
        return card.tokenizer.encode(prompt, add_special_tokens=add_special_tokens)
    check_ids(prompt, param, card.vocab_size)
    return tuple(prompt)


def _single(prompt: Prompt) -> tuple[str | list[int], str]:
    """The one prompt, and where it stands."""
    if isinstance(prompt, str):
        return prompt, "prompt"
    first = prompt[0]
    if isinstance(first, int):
        return cast("list[int]", prompt), "prompt"
    if len(prompt) > 1:
        raise UnsupportedParameter(
            f"prompt is a list of {len(prompt)} prompts; this server answers one a request: send"
            " them one by one",
            param="prompt",
        )
    return first, "prompt[0]"
