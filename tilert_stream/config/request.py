"""Options of every role that sees whole requests: their limits, and the stages they run through."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Annotated

from ..errors import ConfigError
from ..openai.envelope import REASONING_FIELDS
from .option import Option, Options, StagePlacement

__all__ = ("LimitOptions", "ParserOptions", "PipelineOptions", "QueueOptions")


@dataclass(frozen=True, kw_only=True)
class LimitOptions(Options):
    """How much, and how long."""

    prefill_timeout: Annotated[
        float, Option("Limits", "Seconds that computing the prompt may take.", least=0.001)
    ] = 300.0
    kv_timeout: Annotated[
        float,
        Option("Limits", "Seconds that the KV cache may take to its decode slot.", least=0.001),
    ] = 120.0
    first_token_timeout: Annotated[
        float,
        Option("Limits", "Seconds from the slot to the first token, at most.", least=0.001),
    ] = 600.0
    inter_token_timeout: Annotated[
        float, Option("Limits", "Seconds from one token to the next, at most.", least=0.001)
    ] = 120.0
    total_timeout: Annotated[
        float,
        Option(
            "Limits",
            "Seconds that a whole answer may take, the wait for a slot included.",
            default="no limit",
            least=0.001,
        ),
    ] = inf
    max_body_bytes: Annotated[
        int, Option("Limits", "Bytes of a request body; more gets 413.", least=1)
    ] = 32 * 1024 * 1024
    max_header_bytes: Annotated[
        int, Option("Limits", "Bytes of a request line and headers; more gets 431.", least=1)
    ] = 64 * 1024
    max_connections: Annotated[
        int | None,
        Option(
            "Limits",
            "Open connections; further ones wait in the kernel until one closes.",
            default="no limit",
            least=1,
        ),
    ] = None
    drain_delay: Annotated[
        float,
        Option(
            "Limits",
            "Seconds after SIGTERM in which /ready says no and all are served as before.",
            least=0,
        ),
    ] = 0.0
    drain_timeout: Annotated[
        float,
        Option("Limits", "Seconds that answers in flight are given to end, then.", least=0),
    ] = 30.0


@dataclass(frozen=True, kw_only=True)
class QueueOptions(LimitOptions):
    """How long a request may wait for a decode slot."""

    queue_timeout: Annotated[
        float,
        Option("Limits", "Seconds that a request waits for a slot before it gets 429.", least=0),
    ] = 30.0
    max_queue: Annotated[
        int, Option("Limits", "Requests that wait for a slot; one more gets 429 at once.", least=0)
    ] = 256


@dataclass(frozen=True, kw_only=True)
class ParserOptions(Options):
    """How answers are read."""

    output_parser: Annotated[
        str,
        Option(
            "Pipeline",
            "What reads reasoning and tool calls out of answers: glm47, deepseek, hermes, think,"
            " none, a plugin's name, or auto: what the model's chat template certainly writes.",
        ),
    ] = "auto"
    reasoning_field: Annotated[
        str,
        Option(
            "Pipeline",
            "The name of reasoning in messages and deltas: reasoning_content, reasoning, or both.",
        ),
    ] = "both"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reasoning_field not in (known := ("both", *REASONING_FIELDS)):
            raise ConfigError(
                f"reasoning_field is {self.reasoning_field!r}; it must be one of"
                f" {', '.join(known)}.",
                param="reasoning_field",
            )


@dataclass(frozen=True, kw_only=True)
class PipelineOptions(ParserOptions):
    """Stages of the operator's own."""

    stages: Annotated[
        tuple[StagePlacement, ...],
        Option(
            "Pipeline",
            "Stage of your own, as module:attr@after=detokenize (also @before=, @replace=).",
            default="none",
            singular="stage",
        ),
    ] = ()
    print_pipeline: Annotated[bool, Option("Pipeline", "Print the pipeline and exit.")] = False
