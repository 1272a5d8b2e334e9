"""The body of ``POST /inference/v1/generate`` in, ``GenerateRequest`` and ``Envelope`` out.

vLLM's token-in, token-out endpoint: a prompt of token ids, sampling parameters in an object of
their own, and token ids as the answer (``output_mode: "tokens"``).
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final, cast

from pydantic import Field

from ..errors import InvalidRequest, UnsupportedParameter
from .body import parse_object
from .build import Budget, Parsed, build, check_model
from .describe import describe
from .fields import LOGPROBS_MAX, CommonRequest, StreamOptions
from .ids import Ids, check_ids
from .parameters import check_parameters
from .validation import WireModel, validate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..model.card import ModelCard

__all__ = ("GenerateBody", "TokenSampling", "parse_generate")

PARAMS: Final = "sampling_params"
REFUSED: Final = ("features", "content_parts", "kv_transfer_params", "ec_transfer_params")
"""Fields of vLLM's that ask for what is not served: other media than text, and caches from
elsewhere."""

REFUSED_SAMPLING: Final = ("echo", "response_format", "structured_outputs")
_TOP: Final = re.compile(r"[.\[]")


class TokenSampling(CommonRequest):
    """Every field of a completion that speaks of sampling and of length."""

    logprobs: int | None = Field(default=None, ge=0, le=LOGPROBS_MAX)


class GenerateBody(WireModel):
    """What a request for tokens may say.

    ``request_id`` is repeated in the answer; the server has an id of its own, which is unique.
    """

    token_ids: Ids = Field(min_length=1)
    sampling_params: TokenSampling = Field(default_factory=TokenSampling)
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    request_id: str | None = Field(default=None, min_length=1, max_length=128)
    output_mode: str | None = None


def parse_generate(body: bytes, card: ModelCard) -> Parsed:
    """Read a request, and refuse it now if it can be told now.

    :raises ~tilert_stream.errors.TilertStreamError: of a kind with a 4xx status, and nothing else.
    """
    raw = parse_object(body)
    wire = validate(GenerateBody, raw)
    check_model(wire.model, card)
    _check_fields(raw, wire)
    check_ids(wire.token_ids, "token_ids", card.vocab_size)
    sampling = cast("Mapping[str, object]", raw.get(PARAMS) or {})
    whole = {"model": wire.model, "stream": wire.stream, "stream_options": wire.stream_options}
    common = wire.sampling_params.model_copy(update=whole)
    try:
        check_parameters(sampling, "completion", card.capabilities)
        request, envelope = build(
            common,
            card,
            kind="tokens",
            prompt_ids=tuple(wire.token_ids),
            prompt_param="token_ids",
            budget=Budget("max_tokens", common.max_tokens),
            logprobs=common.logprobs,
        )
    except InvalidRequest as error:
        if error.param is not None and _TOP.split(error.param, maxsplit=1)[0] in sampling:
            error.param = f"{PARAMS}.{error.param}"
        raise
    if wire.request_id is not None:
        envelope = replace(envelope, request_id=wire.request_id)
    return Parsed(request, envelope)


def _check_fields(raw: Mapping[str, object], wire: GenerateBody) -> None:
    given = cast("Mapping[str, object]", raw.get(PARAMS) or {})
    for name in REFUSED_SAMPLING:
        if given.get(name):
            raise UnsupportedParameter(
                f"{PARAMS}.{name} is {describe(given[name])}; it is served with text only: leave it"
                " out, or use /v1/completions",
                param=f"{PARAMS}.{name}",
            )
    for name in REFUSED:
        if raw.get(name) is not None:
            raise UnsupportedParameter(
                f"{name} is {describe(raw[name])}, which is not served (token ids in and token ids"
                " out only): leave it out",
                param=name,
            )
    if wire.output_mode not in (None, "tokens"):
        raise UnsupportedParameter(
            f"output_mode is {describe(wire.output_mode)}; this server answers with token ids: send"
            " 'tokens' or leave it out, or use /v1/completions for text",
            param="output_mode",
        )
