"""The call of a vLLM-like prefill: a request in, a body out; an answer in, the first token out.

Prefill is an OpenAI server that is asked for one token. What it is asked is the client's request,
rid of every field that makes no sense for one token: some of them would make it decode the whole
answer, others are refused where an answer is not streamed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, cast

import orjson

from ..events import PromptUsage, TokenBatch
from ..http.client.errors import UpstreamError, UpstreamInvalid
from ..openai.grammar import structured_outputs
from .first_logprob import read_first_logprob
from .further_sampling import logit_fields
from .json_fields import as_list, as_object, token_id
from .prompt_logprobs import read_prompt_logprobs
from .refusals import refusal_of, retry_after

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..errors import TilertStreamError
    from ..events import GenerateRequest, Sampling
    from ..http.client import Begun, HTTPClient, Origin

__all__ = ("PrefillAnswer", "PrefillCall", "prefill_body", "read_prefill_answer", "request_fields")

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

_TOKEN: Final = re.compile(r"token_id:([0-9]{1,10})")
_SENT_GRAMMAR: Final = re.compile(r"structured_outputs(\.json|\.grammar)?")
_GIVEN_UP: Final = frozenset({"abort", "error", "cancelled"})


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
    if _integer(fields.get("min_tokens")) >= 1:
        body["min_tokens"] = 1
    if "messages" in fields:
        body |= {"logprobs": True, "top_logprobs": max(1, _integer(fields.get("top_logprobs")))}
    else:
        body["logprobs"] = max(1, _integer(fields.get("logprobs")))
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


def _integer(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


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
        self._headers = [("content-type", "application/json")]
        if api_key is not None:
            self._headers.append(("authorization", f"Bearer {api_key}"))

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
        async with self._client.request(
            self.origin,
            "POST",
            "/v1/completions",
            self._headers,
            body,
            head_timeout=self._answer_timeout,
            begun=begun,
        ) as response:
            if (response.header(b"content-type") or "").startswith("text/event-stream"):
                # It may go on for as long as a whole answer takes.
                raise UpstreamInvalid(f"{label} sent an event stream, although stream is false")
            answer = await response.read(_answer_bytes(request), within=self._answer_timeout)
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


@dataclass(frozen=True, slots=True)
class PrefillAnswer:
    """What prefill says of a computed prompt."""

    first: TokenBatch
    """The first token, one id."""
    usage: PromptUsage
    kv_transfer_params: Mapping[str, object] | None
    """What its connector gives to the decode node; None where it says nothing."""


def read_prefill_answer(
    body: bytes,
    *,
    prompt_ids: Sequence[int],
    label: str,
    logprobs: int | None = None,
    prompt_logprobs: int | None = None,
) -> PrefillAnswer:
    """Read a 200 of prefill: OpenAI's chat completion or completion, as vLLM writes it.

    :param prompt_ids: what has been asked for.
    :param label: what prefill is called in errors.
    :param logprobs: how many tokens are to be told beside the first one; None: no
        log-probabilities are read.
    :param prompt_logprobs: the same beside each token of the prompt.
    :raises UpstreamInvalid: it is no such object, does not say the first token's id, or is about
        another prompt.
    :raises UpstreamError: prefill has given the request up.
    """
    try:
        answer = as_object(orjson.loads(body), "the answer")
        choice = as_object(as_list(answer.get("choices"), "choices", least=1)[0], "choices[0]")
        reason = choice.get("finish_reason")
        if isinstance(reason, str) and reason in _GIVEN_UP:
            raise UpstreamError(f"{label} gave the request up (finish_reason {reason!r})")
        first = _first_token(choice)
        told = None if logprobs is None else read_first_logprob(choice, first, logprobs)
        usage = _usage(answer.get("usage"), len(prompt_ids))
        if prompt_logprobs is not None:
            of_prompt = read_prompt_logprobs(choice, prompt_ids, prompt_logprobs)
            usage = replace(usage, logprobs=of_prompt)
        params = answer.get("kv_transfer_params")
        if params is not None:
            params = as_object(params, "kv_transfer_params")
    except orjson.JSONDecodeError as error:
        raise UpstreamInvalid(f"{label} did not answer in JSON: {_what_else(body)}") from error
    except ValueError as error:
        raise UpstreamInvalid(f"the answer of {label} cannot be used: {error}") from error
    return PrefillAnswer(TokenBatch((first,), told), usage, params)


def _layout(value: object) -> Mapping[str, object]:
    fields = as_object(value, LAYOUT)
    for name, field in fields.items():
        if not isinstance(field, str | int):
            raise ValueError(f"{LAYOUT}.{name} is {field!r:.40}; it must be text, integer or flag")  # noqa: TRY004 - every fault of a peer's JSON is one kind of error
    return fields


def _what_else(body: bytes) -> str:
    if body.lstrip()[:6] in (b"data: ", b"event:"):
        return "it sent an event stream, although stream is false"
    return f"{len(body)} bytes of something else" if body else "nothing came"


def _first_token(choice: Mapping[str, object]) -> int:
    ids = choice.get("token_ids")
    named = _named_token(choice.get("logprobs"))
    if ids is not None:
        ids = as_list(ids, "choices[0].token_ids")
        if len(ids) != 1:
            raise ValueError(f"choices[0].token_ids has {len(ids)} ids; one was asked for")
        first = token_id(ids[0], "choices[0].token_ids[0]")
        if named not in (None, first):
            raise ValueError(f"choices[0] says both {first} and {named} for the first token")
        return first
    if named is None:
        raise ValueError(
            "choices[0] does not say the first token's id, neither in token_ids nor as"
            " 'token_id:N' in logprobs; start prefill with --return-tokens-as-token-ids"
        )
    return named


def _named_token(logprobs: object) -> int | None:
    """The ``token_id:N`` of a chat's ``content[0].token`` or a completion's ``tokens[0]``."""
    if not isinstance(logprobs, dict):
        return None
    entries = cast("dict[str, object]", logprobs)
    content, tokens = entries.get("content"), entries.get("tokens")
    name: object = None
    if isinstance(content, list) and content:
        entry = cast("list[object]", content)[0]
        name = cast("dict[str, object]", entry).get("token") if isinstance(entry, dict) else None
    elif isinstance(tokens, list) and tokens:
        name = cast("list[object]", tokens)[0]
    match = _TOKEN.fullmatch(name) if isinstance(name, str) else None
    return None if match is None else token_id(int(match[1]), "logprobs")


def _usage(usage: object, prompt_tokens: int) -> PromptUsage:
    """The prompt's tokens; our own count where prefill does not report it."""
    if not isinstance(usage, dict):
        return PromptUsage(prompt_tokens)
    fields = cast("dict[str, object]", usage)
    reported = _integer(fields.get("prompt_tokens")) or prompt_tokens
    if reported != prompt_tokens:
        raise ValueError(
            f"it is about a prompt of {reported} tokens; the prompt has {prompt_tokens}"
        )
    details = fields.get("prompt_tokens_details")
    cached = (
        cast("dict[str, object]", details).get("cached_tokens")
        if isinstance(details, dict)
        else None
    )
    if not isinstance(cached, int) or isinstance(cached, bool):
        return PromptUsage(prompt_tokens)
    return PromptUsage(prompt_tokens, min(max(cached, 0), prompt_tokens))
