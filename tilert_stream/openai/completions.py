"""The body of ``POST /v1/completions`` in, ``GenerateRequest`` and ``Envelope`` out."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias, cast

from pydantic import Discriminator, Field, Tag

from ..errors import InvalidRequest, UnsupportedParameter
from .body import parse_object
from .build import Budget, Parsed, build, check_model
from .envelope import OtherPrompt
from .fields import CHOICES_MAX, LOGPROBS_MAX, CommonRequest
from .grammar import answer_grammar
from .ids import Ids, check_ids
from .parameters import check_parameters
from .validation import validate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..model.card import ModelCard

__all__ = ("CompletionRequest", "parse_completion", "read_completion")

MAX_TOKENS_DEFAULT: Final = 16
"""OpenAI's."""

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
    prompts = _prompts(wire.prompt)
    count = len(prompts) * (wire.n or 1)
    if count > CHOICES_MAX:
        raise InvalidRequest(
            f"prompt is a list of {len(prompts)} and n is {wire.n or 1}, together {count} answers;"
            f" it must be at most {CHOICES_MAX}: send several requests",
            param="prompt",
        )
    first, *others = [_read_prompt(wire, card, prompt, param) for prompt, param in prompts]
    if not others:
        return first
    further = tuple(OtherPrompt(each.request, each.envelope.echo) for each in others)
    return Parsed(first.request, replace(first.envelope, choices=count, others=further))


def _read_prompt(
    wire: CompletionRequest, card: ModelCard, prompt: str | list[int], param: str
) -> Parsed:
    if isinstance(prompt, str):
        ids = card.tokenizer.encode(prompt, add_special_tokens=wire.add_special_tokens is not False)
    else:
        check_ids(prompt, param, card.vocab_size)
        ids = tuple(prompt)
    return build(
        wire,
        card,
        kind="completion",
        prompt_ids=ids,
        prompt_param=param,
        budget=Budget("max_tokens", wire.max_tokens, MAX_TOKENS_DEFAULT),
        logprobs=wire.logprobs,
        grammar=answer_grammar(wire.response_format, wire.structured_outputs),
        echo=_echo(wire, prompt, card) if wire.echo else "",
        echo_logprobs=bool(wire.echo),
    )


def _echo(wire: CompletionRequest, prompt: str | list[int], card: ModelCard) -> str:
    if wire.logprobs is not None and "prompt_logprobs" not in card.capabilities:
        raise UnsupportedParameter(
            "echo is true and logprobs is given: the engine tells no log-probabilities of the"
            " prompt; leave one of them out",
            param="echo",
        )
    if isinstance(prompt, str):
        return prompt
    return card.tokenizer.decode(prompt, skip_special_tokens=False)


def _prompts(prompt: Prompt) -> list[tuple[str | list[int], str]]:
    """Each prompt, and where it stands."""
    if isinstance(prompt, str):
        return [(prompt, "prompt")]
    parts: Sequence[int | str | list[int]] = prompt
    several: list[tuple[str | list[int], str]] = []
    for index, each in enumerate(parts):
        if isinstance(each, int):
            return [(cast("list[int]", prompt), "prompt")]
        several.append((each, f"prompt[{index}]"))
    return several
