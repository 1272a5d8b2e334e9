"""A validated request in, ``GenerateRequest`` and ``Envelope`` out: the last place that says no."""

from __future__ import annotations

import re
from math import isfinite
from os import urandom
from typing import TYPE_CHECKING, Final, NamedTuple

from ..errors import ContextLengthExceeded, InvalidRequest, ModelNotFound
from ..events import GenerateRequest, Limits, Sampling
from .describe import describe
from .envelope import Envelope
from .grammar import grammar_param
from .ids import check_ids

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..events import OutputFormat
    from ..model.card import ModelCard
    from .envelope import Endpoint
    from .fields import CommonRequest

__all__ = ("Budget", "Parsed", "build", "check_model")

TEMPERATURE_MIN: Final = 0.01
"""As vLLM: dividing logits by less overflows."""
BIAS_MAX: Final = 100.0
"""As vLLM, a stronger one is cut to it."""

ECHO_MAX: Final = 40
"""Characters of a key that an error repeats."""
_TOKEN_ID: Final = re.compile(r"[0-9]{1,10}")


class Parsed(NamedTuple):
    """One request, ready to run."""

    request: GenerateRequest
    envelope: Envelope


class Budget(NamedTuple):
    """How many tokens may be generated, and which field said so."""

    param: str
    given: int | None
    default: int | None = None
    """Where nothing is given; None: what the context leaves. Cut to that in any case."""


def check_model(model: str | None, card: ModelCard) -> str:
    """The name to answer with.

    :raises ~tilert_stream.errors.ModelNotFound: ``card`` does not have it.
    """
    if model is None:
        return card.names[0]
    if model not in card.names:
        served = ", ".join(card.names)
        raise ModelNotFound(
            f"the model {describe(model)} does not exist; served here: {served}", param="model"
        )
    return model


def build(
    wire: CommonRequest,
    card: ModelCard,
    *,
    kind: Endpoint,
    prompt_ids: tuple[int, ...],
    prompt_param: str,
    budget: Budget,
    output: OutputFormat | None = None,
    logprobs: int | None = None,
    grammar: str | None = None,
    echo: str = "",
    echo_logprobs: bool = False,
    include_reasoning: bool = True,
) -> Parsed:
    """Check what no single field can tell, and fill in the defaults.

    :param prompt_param: the field that the prompt came from.
    :param output: what an output parser must know; None where the answer is only text.
    :param logprobs: how many tokens are told beside each drawn one; None: not even that one.
    :param grammar: what the answer must match.
    :param echo: what stands before the answer.
    :param echo_logprobs: ``logprobs`` are told of the prompt, too.
    :param include_reasoning: the answer has its reasoning.
    :raises ~tilert_stream.errors.ContextLengthExceeded: prompt and answer do not fit.
    :raises ~tilert_stream.errors.InvalidRequest: fields contradict each other.
    """
    model = check_model(wire.model, card)
    if not prompt_ids:
        raise InvalidRequest(
            f"{prompt_param} has no token; it must have at least one", param=prompt_param
        )
    max_tokens = _max_tokens(len(prompt_ids), card.max_seq_len, prompt_param, budget)
    request = GenerateRequest(
        id=urandom(16).hex(),
        prompt_ids=prompt_ids,
        limits=_limits(wire, card, max_tokens, budget.param),
        sampling=_sampling(
            wire,
            card,
            prompt_ids,
            grammar,
            logprobs=logprobs,
            prompt_logprobs=_prompt_logprobs(wire, logprobs if echo_logprobs else None),
        ),
        stop=_stop(wire),
        include_stop=bool(wire.include_stop_str_in_output),
        skip_special_tokens=wire.skip_special_tokens is not False,
        output=output,
    )
    if grammar is not None:
        _check_end(wire)
    include_usage, continuous_usage = _usage(wire)
    envelope = Envelope(
        request.id,
        kind,
        model,
        stream=bool(wire.stream),
        include_usage=include_usage,
        continuous_usage=continuous_usage,
        include_reasoning=include_reasoning,
        choices=wire.n or 1,
        logprobs=logprobs is not None,
        prompt_logprobs=wire.prompt_logprobs,
        echo_logprobs=echo_logprobs and logprobs is not None,
        token_ids=bool(wire.return_token_ids),
        tokens_as_ids=bool(wire.return_tokens_as_token_ids),
        echo=echo,
    )
    return Parsed(request, envelope)


def _max_tokens(prompt: int, context: int, prompt_param: str, budget: Budget) -> int:
    room = context - prompt
    if room < 1:
        raise ContextLengthExceeded(
            f"{prompt_param} has {prompt} tokens; the model's context is {context} tokens, prompt"
            f" and answer together: shorten the prompt to at most {context - 1} tokens",
            param=prompt_param,
        )
    if budget.given is None:
        return room if budget.default is None else min(budget.default, room)
    if budget.given > room:
        raise ContextLengthExceeded(
            f"{prompt_param} has {prompt} tokens and {budget.param} is {budget.given}, together"
            f" {prompt + budget.given}; the model's context is {context} tokens: shorten the"
            f" prompt, or ask for at most {room} tokens",
            param=budget.param,
        )
    return budget.given


def _limits(wire: CommonRequest, card: ModelCard, max_tokens: int, max_param: str) -> Limits:
    min_tokens = wire.min_tokens or 0
    if min_tokens > max_tokens:
        raise InvalidRequest(
            f"min_tokens is {min_tokens}; it must be at most {max_param}, which is {max_tokens}",
            param="min_tokens",
        )
    stop_ids = wire.stop_token_ids or []
    check_ids(stop_ids, "stop_token_ids", card.vocab_size)
    limits = Limits(
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        eos_ids=frozenset() if wire.ignore_eos else card.eos_ids,
        stop_ids=frozenset(stop_ids),
    )
    mask = limits.stop_mask(0)
    if len(mask) >= card.vocab_size and all(token in mask for token in range(card.vocab_size)):
        raise InvalidRequest(
            f"stop_token_ids and the model's own stop tokens are all {card.vocab_size} tokens of"
            f" the vocabulary, which leaves none for the first {min_tokens} (min_tokens): leave"
            " out min_tokens, or stop at fewer tokens",
            param="stop_token_ids",
        )
    return limits


def _check_end(wire: CommonRequest) -> None:
    """Refuse what would have an answer go on behind the end of its grammar."""
    for name, asked in (("ignore_eos", wire.ignore_eos), ("min_tokens", wire.min_tokens)):
        if asked:
            raise InvalidRequest(
                f"{name} is {describe(asked)}, and the answer is held to a grammar, which says"
                f" where it ends: leave out {name}",
                param=name,
            )


def _sampling(
    wire: CommonRequest,
    card: ModelCard,
    prompt_ids: tuple[int, ...],
    grammar: str | None,
    *,
    logprobs: int | None,
    prompt_logprobs: int | None,
) -> Sampling:
    default = card.default_sampling
    repetition = default.repetition_penalty
    if wire.repetition_penalty is not None:
        repetition = wire.repetition_penalty
    temperature = default.temperature if wire.temperature is None else wire.temperature
    top_k = default.top_k if wire.top_k is None else wire.top_k
    return Sampling(
        temperature=max(temperature, TEMPERATURE_MIN) if temperature else 0.0,
        top_p=default.top_p if wire.top_p is None else wire.top_p,
        # -1, and all of the vocabulary, are what 0 says: no engine needs to know them.
        top_k=top_k if 0 < top_k < card.vocab_size else 0,
        min_p=default.min_p if wire.min_p is None else wire.min_p,
        seed=default.seed if wire.seed is None else wire.seed,
        presence_penalty=wire.presence_penalty or 0.0,
        frequency_penalty=wire.frequency_penalty or 0.0,
        repetition_penalty=repetition,
        prompt_tokens=frozenset(prompt_ids) if repetition != 1 else frozenset(),
        logit_bias=_logit_bias(wire.logit_bias, card.vocab_size) if wire.logit_bias else (),
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        grammar=grammar,
        grammar_param="response_format"
        if grammar is None
        else grammar_param(wire.response_format, wire.structured_outputs),
    )


def _prompt_logprobs(wire: CommonRequest, echoed: int | None) -> int | None:
    """How many tokens must be told beside each of the prompt's, for all that asks for them."""
    if wire.prompt_logprobs is not None and wire.stream:
        raise InvalidRequest(
            f"prompt_logprobs is {wire.prompt_logprobs}, and stream is true; they are told in a"
            " whole answer only: leave one of them out",
            param="prompt_logprobs",
        )
    asked = [count for count in (wire.prompt_logprobs, echoed) if count is not None]
    return max(asked, default=None)


def _logit_bias(given: Mapping[str, float], vocab_size: int) -> tuple[tuple[int, float], ...]:
    for name, value in given.items():
        param = f"logit_bias.{name[:ECHO_MAX]}"
        if not _TOKEN_ID.fullmatch(name) or int(name) >= vocab_size:
            raise InvalidRequest(
                f"logit_bias has the key {describe(name)}; it must be a token id as a string, at"
                f" least 0 and below the vocabulary's size, {vocab_size}",
                param=param,
            )
        if not isfinite(value):
            raise InvalidRequest(f"{param} is {value}; it must be a finite number", param=param)
    biases = ((int(name), min(max(value, -BIAS_MAX), BIAS_MAX)) for name, value in given.items())
    return tuple((token, bias) for token, bias in biases if bias)


def _stop(wire: CommonRequest) -> tuple[str, ...]:
    if isinstance(wire.stop, str):
        return (wire.stop,)
    return tuple(wire.stop or ())


def _usage(wire: CommonRequest) -> tuple[bool, bool]:
    """Whether the answer's end tells its usage, and whether each chunk does."""
    options = wire.stream_options
    if options is None:
        return False, False
    if not wire.stream and options.model_fields_set:
        raise InvalidRequest(
            "stream_options is given without stream; send stream: true, or leave it out",
            param="stream_options",
        )
    include_usage = bool(options.include_usage)
    return include_usage, include_usage and bool(options.continuous_usage_stats)
