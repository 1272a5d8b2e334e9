"""The answer of a vLLM-like prefill: a body in, the first token and the prompt's usage out."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple, cast

import orjson

from ..events import PromptUsage, TokenBatch
from ..http.client.errors import UpstreamError, UpstreamInvalid
from .first_logprob import read_first_logprob
from .json_fields import as_list, as_object, token_id, whole
from .prompt_logprobs import read_prompt_logprobs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ("PrefillAnswer", "read_prefill_answer")

_TOKEN: Final = re.compile(r"token_id:([0-9]{1,10})")
_GIVEN_UP: Final = frozenset({"abort", "error", "cancelled"})


class PrefillAnswer(NamedTuple):
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
    reported = whole(fields.get("prompt_tokens")) or prompt_tokens
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
