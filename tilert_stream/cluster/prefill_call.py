"""The call of a vLLM-like prefill: a request in, a body out; the answer is ``prefill_answer``'s.

Prefill is an OpenAI server that is asked for one token. What it is asked is the client's request,
rid of every field that makes no sense for one token: some of them would make it decode the whole
answer, others are refused where an answer is not streamed.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import orjson

from ..http.client.errors import UpstreamError, UpstreamInvalid
from ..openai.grammar import structured_outputs
from .further_sampling import logit_fields
from .json_fields import as_list, as_object, whole
from .prefill_answer import read_prefill_answer
from .refusals import refusal_of, retry_after

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..errors import TilertStreamError
    from ..events import GenerateRequest, Sampling
    from ..http.client import Begun, HTTPClient, Origin
    from .prefill_answer import PrefillAnswer

__all__ = ("PrefillCall", "prefill_body", "request_fields")

DROPPED: Final = frozenset(
    {"stream_options", "max_completion_tokens", "stop", "n", "echo", "best_of", "min_tokens"}
)
"""``max_completion_tokens`` wins over ``max_tokens``, ``stream_options`` is refused without
``stream``, and a stop string may be the first token: stopping is the router's own work."""

LAYOUT: Final = "kv_layout"
"""The field of a model in ``GET /v1/models`` that describes its KV cache; ours."""
LAYOUT_TIMEOUT: Final = 5.0

ANSWER_BYTES: Final = 4 * 1024 * 1024
"""One token, and what prefill says about the prompt."""
LOGPROB_BYTES: Final = 200
"""One more token with its log-probability, as vLLM writes it."""

_SENT_GRAMMAR: Final = re.compile(r"structured_outputs(\.json|\.grammar)?")


def request_fields(request: GenerateRequest) -> dict[str, object]:
    """``request`` as the fields of a completion: its prompt as token ids.

    Ids, not text: the decode node's KV cache then belongs to exactly the prompt that the router
    has counted, whatever template or special tokens prefill would have added.
    """
    limits, sampling = request.limits, request.sampling
    fields: dict[str, object] = {
        "prompt": request.prompt_ids,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "seed": sampling.seed,
        "min_tokens": limits.min_tokens,
        "stop_token_ids": sorted(limits.stop_ids),
        "ignore_eos": not limits.eos_ids,
        **logit_fields(sampling),
    }
    if sampling.logprobs is not None:
        # An answer has them in any case, for the first token's id: this says that they are read.
        fields |= {"logprobs": sampling.logprobs, "wants_logprobs": True}
    if sampling.prompt_logprobs is not None:
        fields["prompt_logprobs"] = sampling.prompt_logprobs
    if sampling.grammar is not None:
        fields["structured_outputs"] = structured_outputs(sampling.grammar)
    return fields


def prefill_body(
    fields: Mapping[str, object],
    *,
    request_id: str,
    model: str,
    kv_transfer_params: Mapping[str, object] | None,
) -> dict[str, object]:
    """What prefill is sent for a request with ``fields``; they are not changed.

    :param fields: of a chat completion (with ``messages``) or a completion.
    :param request_id: hex digits without a dash: both ends derive the name of the hand-off from
        it, and take off what stands behind a dash.
    :param model: prefill's own name of the model, whatever the client has called it.
    :param kv_transfer_params: what prefill's connector needs to find the decode node.
    """
    body = {name: value for name, value in fields.items() if name not in DROPPED}
    body |= {
        "model": model,
        "max_tokens": 1,
        "stream": False,
        "request_id": request_id,
        # Two ways to learn the id of the first token; servers know one or the other.
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
    }
    if whole(fields.get("min_tokens")) >= 1:
        body["min_tokens"] = 1
    if "messages" in fields:
        body |= {"logprobs": True, "top_logprobs": max(1, whole(fields.get("top_logprobs")))}
    else:
        body["logprobs"] = max(1, whole(fields.get("logprobs")))
    if kv_transfer_params is not None:
        body["kv_transfer_params"] = dict(kv_transfer_params)
    return body


def _answer_bytes(request: GenerateRequest) -> int:
    count = request.sampling.prompt_logprobs
    return ANSWER_BYTES + (
        0 if count is None else len(request.prompt_ids) * (count + 1) * LOGPROB_BYTES
    )


def _as_asked(refusal: TilertStreamError, sampling: Sampling) -> TilertStreamError:
    """``refusal``, its grammar by the field that our client has used for it."""
    sent = _SENT_GRAMMAR.match(refusal.param or "")
    if sent is None or sampling.grammar is None:
        return refusal
    rest = (refusal.param or "")[sent.end() :]
    refusal.param = sampling.grammar_param + rest
    refusal.message = refusal.message.replace(sent[0], sampling.grammar_param, 1)
    return refusal


class PrefillCall:
    """Calls one prefill server.

    :param model: its own name of the model.
    :param api_key: the key that it wants; never the client's.
    :param answer_timeout: seconds for a prompt, and again for the answer's body.
    """

    def __init__(
        self,
        client: HTTPClient,
        origin: Origin,
        *,
        model: str,
        api_key: str | None = None,
        answer_timeout: float = 600.0,
    ) -> None:
        self.origin = origin
        self._client = client
        self._model = model
        self._answer_timeout = answer_timeout
        content = ("content-type", "application/json")
        self._headers = (
            (content,) if api_key is None else (content, ("authorization", f"Bearer {api_key}"))
        )

    def begin(
        self, request: GenerateRequest, kv_transfer_params: Mapping[str, object] | None
    ) -> Begun | None:
        """Ask now, and leave the answer to ``prefill``; None: not now. Sync."""
        body = self._body(request, kv_transfer_params)
        return self._client.begin(self.origin, "POST", "/v1/completions", self._headers, body)

    def _body(
        self, request: GenerateRequest, kv_transfer_params: Mapping[str, object] | None
    ) -> bytes:
        body = prefill_body(
            request_fields(request),
            request_id=request.id,
            model=self._model,
            kv_transfer_params=kv_transfer_params,
        )
        return orjson.dumps(body)

    async def prefill(
        self,
        request: GenerateRequest,
        kv_transfer_params: Mapping[str, object] | None,
        begun: Begun | None = None,
    ) -> PrefillAnswer:
        """Have the prompt computed; cancelling closes the connection, which stops it.

        :param begun: the same request, by ``begin``.
        :raises ~tilert_stream.errors.InvalidRequest: prefill's own 4xx, in its own words.
        :raises ~tilert_stream.errors.Busy: it takes no more at present.
        :raises ~tilert_stream.http.client.UpstreamError: it did not answer, or not usefully.
        """
        label = self.origin.label
        body = b"" if begun is not None else self._body(request, kv_transfer_params)
        response = await self._client.open(
            self.origin,
            "POST",
            "/v1/completions",
            self._headers,
            body,
            head_timeout=self._answer_timeout,
            begun=begun,
        )
        try:
            if (response.header(b"content-type") or "").startswith("text/event-stream"):
                # It may go on for as long as a whole answer takes.
                raise UpstreamInvalid(f"{label} sent an event stream, although stream is false")
            answer = await response.read(_answer_bytes(request), within=self._answer_timeout)
        finally:
            response.close()
        if response.status != 200:
            after = retry_after(response.header)
            refusal = refusal_of(response.status, answer, label=label, after=after)
            raise _as_asked(refusal, request.sampling)
        return read_prefill_answer(
            answer,
            prompt_ids=request.prompt_ids,
            label=label,
            logprobs=request.sampling.logprobs,
            prompt_logprobs=request.sampling.prompt_logprobs,
        )

    async def layout(self) -> Mapping[str, object] | None:
        """The layout of its KV caches, field by field; None: it says nothing of it.

        :raises ~tilert_stream.http.client.UpstreamError: it did not answer.
        """
        async with self._client.request(
            self.origin, "GET", "/v1/models", self._headers, head_timeout=LAYOUT_TIMEOUT
        ) as response:
            answer = await response.read(ANSWER_BYTES, within=LAYOUT_TIMEOUT)
        if response.status != 200:
            raise UpstreamError(f"{self.origin.label} does not list its models")
        try:
            models = as_list(as_object(orjson.loads(answer), "the answer").get("data"), "data")
            found = [as_object(model, "data[…]") for model in models]
            named = [model for model in found if model.get("id") == self._model] or found
            layout = named[0].get(LAYOUT) if named else None
            return None if layout is None else _layout(layout)
        except ValueError as error:
            raise UpstreamInvalid(
                f"the models of {self.origin.label} cannot be read: {error}"
            ) from error


def _layout(value: object) -> Mapping[str, object]:
    fields = as_object(value, LAYOUT)
    for name, field in fields.items():
        if not isinstance(field, str | int):
            raise ValueError(f"{LAYOUT}.{name} is {field!r:.40}; it must be text, integer or flag")  # noqa: TRY004 - every fault of a peer's JSON is one kind of error
    return fields
