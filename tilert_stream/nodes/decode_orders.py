"""What a router may say to a decode node: bodies in, typed orders out."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from tilert_stream.events import GenerateRequest, Limits, Sampling
from tilert_stream.openai.body import parse_object
from tilert_stream.openai.fields import LOGPROBS_MAX
from tilert_stream.openai.validation import WireModel, validate
from tilert_transports.control.grant_id import FORETOLD

if TYPE_CHECKING:
    from tilert_stream.openai.validation import ModelT

__all__ = (
    "CancelBody",
    "DeclineBody",
    "DeclineGrantBody",
    "DecodeBody",
    "DecodeOrder",
    "PromptBody",
    "RenewBody",
    "ReserveBody",
    "SamplingBody",
    "read",
    "to_order",
)

RequestId = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[!-~]+$")]
"""It stands in log lines, and travels on to other nodes."""
TokenId = Annotated[int, Field(ge=0, lt=2**31)]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeOrder(GenerateRequest):
    """What a router asks of a decode node. The prompt's ids stay with prefill."""

    first_token: int
    """Prefill's; it counts as the first of ``limits.max_tokens``."""
    generation: int | None
    """Of the grant that the router was given; None: a router of TileRT's, which names none."""
    prompt_ids: tuple[int, ...] = ()
    kv_timeout: float = inf
    """Seconds that the KV cache may take."""
    times: dict[str, float] = field(default_factory=dict[str, float], compare=False)
    """Seconds on ``CLOCK`` at which ``landed``, ``converted`` and ``imported`` came true."""


class PromptBody(WireModel):
    """The prompt whose KV cache may land; the ids themselves stay with prefill."""

    tokens: int = Field(ge=1)
    last_token: TokenId
    digest: str = Field(pattern=r"^[0-9a-f]{16}$")
    """See ``prompt_digest``."""


class ReserveBody(WireModel):
    """``POST /pd/reserve``."""

    rid: RequestId
    attempt: int | None = Field(default=None, ge=0)
    """Names this call to ``POST /pd/cancel``."""
    prompt: PromptBody | None = None
    max_len: int = Field(ge=1)
    """Tokens of prompt and answer together."""
    layout: dict[str, str | int | bool] | None = None
    """Prefill's KV layout, field by field, where the router knows it."""
    wait_s: float | None = Field(default=None, ge=0)
    """Seconds that the answer may wait for a slot to come free."""
    needs: list[str] | None = None
    """What the engine must be capable of, and not every engine is; see ``Capability``."""
    generation: int | None = Field(default=None, ge=FORETOLD, lt=2**53)
    """What the grant is to be called, so that prefill can be told at the same time."""


class RenewBody(WireModel):
    """``POST /pd/renew``."""

    rid: RequestId
    generation: int = Field(ge=1)


class DeclineBody(WireModel):
    """``POST /pd/decline``, in a dialect without grants."""

    rid: RequestId
    reason: str = Field(max_length=2000)


class DeclineGrantBody(DeclineBody):
    """``POST /pd/decline``."""

    incarnation: str
    generation: int = Field(ge=1)


class CancelBody(WireModel):
    """``POST /pd/cancel``."""

    rid: RequestId
    attempt: int | None = Field(default=None, ge=0)
    """The only one that is given up, even if it has yet to arrive; None: whatever is there."""


class SamplingBody(WireModel):
    """How tokens are drawn; what is left out or null has the default."""

    temperature: float | None = Field(default=None, ge=0)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1)
    min_p: float | None = Field(default=None, ge=0, le=1)
    seed: int | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = Field(default=None, ge=0)
    stop_token_ids: list[TokenId] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = Field(default=None, gt=0)
    prompt_tokens: list[TokenId] | None = None
    """The prompt's ids, each once, for ``repetition_penalty``."""
    logit_bias: dict[Annotated[str, Field(pattern=r"^[0-9]{1,10}$")], float] | None = None
    logprobs: int | None = Field(default=None, ge=0, le=LOGPROBS_MAX)
    grammar: str | None = None
    """See ``Sampling.grammar``."""


class DecodeBody(WireModel):
    """``POST /pd/decode``."""

    rid: RequestId
    generation: int | None = Field(default=None, ge=1)
    """Of the grant; None: a router of TileRT's, which knows requests by their ids alone."""
    first_token_id: TokenId
    max_tokens: int = Field(ge=1)
    """The first token counts."""
    sampling: SamplingBody | None = None
    timeout_s: float | None = Field(default=None, gt=0)
    """Seconds that the KV cache may take."""
    stream: bool | None = None


def read(model: type[ModelT], body: bytes) -> ModelT:
    """A body as ``model``.

    :raises ~tilert_stream.errors.InvalidRequest: it is none; ``param`` names the field.
    """
    return validate(model, parse_object(body))


def to_order(body: DecodeBody, eos_ids: frozenset[int]) -> DecodeOrder:
    """What the pipeline takes.

    :param eos_ids: the served model's own stop tokens.
    """
    given = body.sampling or SamplingBody()
    default = Sampling()
    return DecodeOrder(
        id=body.rid,
        generation=body.generation,
        first_token=body.first_token_id,
        limits=Limits(
            max_tokens=body.max_tokens,
            min_tokens=given.min_tokens or 0,
            eos_ids=frozenset() if given.ignore_eos else eos_ids,
            stop_ids=frozenset(given.stop_token_ids or ()),
        ),
        sampling=Sampling(
            temperature=default.temperature if given.temperature is None else given.temperature,
            top_p=default.top_p if given.top_p is None else given.top_p,
            top_k=max(0, default.top_k if given.top_k is None else given.top_k),
            min_p=default.min_p if given.min_p is None else given.min_p,
            seed=given.seed,
            presence_penalty=given.presence_penalty or 0.0,
            frequency_penalty=given.frequency_penalty or 0.0,
            repetition_penalty=given.repetition_penalty or 1.0,
            prompt_tokens=frozenset(given.prompt_tokens or ()),
            logit_bias=tuple((int(name), bias) for name, bias in (given.logit_bias or {}).items()),
            logprobs=given.logprobs,
            grammar=given.grammar,
        ),
        kv_timeout=inf if body.timeout_s is None else body.timeout_s,
    )
