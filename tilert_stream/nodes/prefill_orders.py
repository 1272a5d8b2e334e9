"""What a router may say to a prefill node: OpenAI's body with vLLM's fields in, an order out."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Final, cast

from tilert_stream.errors import InvalidRequest
from tilert_stream.events import GenerateRequest
from tilert_stream.openai.body import parse_object
from tilert_stream.openai.chat import read_chat
from tilert_stream.openai.completions import read_completion

from .hand_over.destination import destination_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tilert_stream.model.card import ModelCard
    from tilert_stream.openai.envelope import Endpoint, Envelope

    from .hand_over.destination import Destination

__all__ = ("PrefillOrder", "read_prefill_order")

BETWEEN_SERVERS: Final = frozenset(
    {
        "kv_transfer_params",
        "logprobs",
        "request_id",
        "return_token_ids",
        "return_tokens_as_token_ids",
        "top_logprobs",
        "wants_logprobs",
    }
)
"""Fields that no client sends. The first token's id is answered in any case."""
ASKED: Final = frozenset({"logprobs", "top_logprobs"})
"""Those of them that are read where ``wants_logprobs`` is true: else a router that sends them only
wants to know the id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillOrder(GenerateRequest):
    """A prompt to be computed, and where its KV cache goes."""

    destination: Destination | None = None
    """None: nowhere; the answer has the first token all the same."""


def read_prefill_order(
    body: bytes, card: ModelCard, kind: Endpoint
) -> tuple[PrefillOrder, Envelope]:
    """Read a request, and refuse it now if it can be told now.

    :raises ~tilert_stream.errors.TilertStreamError: of a kind with a 4xx status, and nothing else.
    """
    raw = parse_object(body)
    left_out = BETWEEN_SERVERS - ASKED if raw.get("wants_logprobs") is True else BETWEEN_SERVERS
    rest = {name: value for name, value in raw.items() if name not in left_out}
    request, envelope = (read_chat if kind == "chat" else read_completion)(rest, card)
    if envelope.stream:
        raise InvalidRequest("stream is true; this node only prefills: send false", param="stream")
    if envelope.choices != 1:
        raise InvalidRequest(
            f"{envelope.choices} answers are asked for; this node only prefills: one prompt, and"
            " n 1",
            param="prompt" if envelope.others else "n",
        )
    if request.limits.max_tokens != 1:
        raise InvalidRequest(
            f"max_tokens is {request.limits.max_tokens}; this node only prefills: it must be 1",
            param="max_tokens",
        )
    given = {field.name: getattr(request, field.name) for field in fields(request)}
    given["id"] = _request_id(raw) or request.id
    order = PrefillOrder(**given, destination=destination_of(_params(raw)))
    return order, replace(envelope, request_id=order.id)


def _request_id(raw: Mapping[str, object]) -> str | None:
    value = raw.get("request_id")
    if value is None:
        return None
    if not isinstance(value, str) or not 1 <= len(value) <= 128 or not value.isprintable():
        raise InvalidRequest(
            "request_id must be a string of 1 to 128 printable characters", param="request_id"
        )
    return value


def _params(raw: Mapping[str, object]) -> Mapping[str, object] | None:
    value = raw.get("kv_transfer_params")
    if value is not None and not isinstance(value, dict):
        raise InvalidRequest(
            "kv_transfer_params must be an object or null", param="kv_transfer_params"
        )
    return cast("dict[str, object] | None", value)
