"""What the options of whole requests come to: time limits, stages, and who reads the answers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, get_args

from tilert_stream.abc import GrammarEngine, capabilities_of
from tilert_stream.events import Capability
from tilert_stream.link import make_link
from tilert_stream.openai.envelope import REASONING_FIELDS
from tilert_stream.parsers.abc import CallWriter
from tilert_stream.parsers.choice import choose_parser
from tilert_stream.time_limits import TimeLimits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tilert_stream.config.request import LimitOptions, ParserOptions, PipelineOptions
    from tilert_stream.events import Tool
    from tilert_stream.model.card import ModelCard
    from tilert_stream.parsers.abc import OutputParser
    from tilert_stream.service import Service

__all__ = (
    "ENGINE_CAPABILITIES",
    "capable",
    "check_stages",
    "choose_output",
    "place_stages",
    "reasoning_fields",
    "time_limits",
)

ENGINE_CAPABILITIES: Final = frozenset[Capability](get_args(Capability)) - {"tools"}
"""All that some engine can do: a router passes it on, and its nodes say what they cannot."""


def check_stages(config: PipelineOptions) -> None:
    """Load what the operator names: a wrong name is told before a model is loaded.

    :raises ~tilert_stream.errors.ConfigError: there is no such output parser.
    :raises ~tilert_stream.errors.PipelineError: a stage is not found, or is none.
    """
    choose_parser(config.output_parser, None)
    for stage in config.stages:
        make_link(stage.use)


def choose_output(config: ParserOptions, card: ModelCard) -> tuple[OutputParser | None, ModelCard]:
    """Who reads the answers of ``card``'s model, and its card, which says what that is good for.

    :raises ~tilert_stream.errors.ConfigError: there is no such output parser.
    """
    template = card.chat_template
    parser = choose_parser(config.output_parser, None if template is None else template.source)
    # A template that knows nothing of tools would leave them out of the prompt without a word.
    if parser is None or not parser.tools or template is None or "tools" not in template.source:
        return parser, card
    capabilities = card.capabilities | frozenset[Capability]({"tools"})
    if not isinstance(parser, CallWriter):
        return parser, replace(card, capabilities=capabilities)
    writer = parser

    def call_grammar(tools: Sequence[Tool], several: bool) -> str | None:  # noqa: FBT001 - a card's
        return writer.call_grammar(tools, several=several)

    return parser, replace(card, capabilities=capabilities, call_grammar=call_grammar)


def capable(card: ModelCard, *engines: object) -> ModelCard:
    """``card`` of a model on ``engines``: it can do what all of them can."""
    shared = ENGINE_CAPABILITIES
    for engine in engines:
        shared &= capabilities_of(engine)
    checks = [engine.check_grammar for engine in engines if isinstance(engine, GrammarEngine)]
    return replace(card, capabilities=shared, check_grammar=checks[0] if checks else None)


def reasoning_fields(config: ParserOptions) -> Sequence[str]:
    """The names that reasoning goes by."""
    return REASONING_FIELDS if config.reasoning_field == "both" else (config.reasoning_field,)


def place_stages(service: Service[Any], config: PipelineOptions) -> None:
    """Put the operator's stages where they go.

    :raises ~tilert_stream.errors.PipelineError: one cannot stand there.
    """
    for stage in config.stages:
        service.pipeline = service.pipeline.insert(
            stage.use, where=stage.where, anchor=stage.anchor
        )


def time_limits(config: LimitOptions) -> TimeLimits:
    """The limits of a request's parts."""
    return TimeLimits(
        prefill=config.prefill_timeout,
        kv=config.kv_timeout,
        first_token=config.first_token_timeout,
        inter_token=config.inter_token_timeout,
        total=config.total_timeout,
    )
