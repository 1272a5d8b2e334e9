"""What this server does with each request field it knows: one declaration a field.

There are three answers. *Served*: it has its documented effect, where it needs a capability only if
the model has that (a card says which). *Inert*: it is accepted, and the
note says why nothing follows from it. *Refused*: a value that asks for something is answered with
400 naming the field, since ignoring it would falsify the answer; ``null`` and the values in
``no_effect`` are fine.

A field that is not declared here is accepted and listed in the debug log.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from ..errors import UnsupportedParameter
from .describe import describe
from .encoding import dumps
from .parameter import Parameter

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from ..events import Capability
    from .envelope import Endpoint

__all__ = ("PARAMETERS", "Parameter", "check_parameters")

logger = logging.getLogger(__name__)

LOGGED_NAMES_MAX: Final = 20


_CHAT: Final[tuple[Endpoint, ...]] = ("chat",)
_COMPLETION: Final[tuple[Endpoint, ...]] = ("completion",)
_NO_BEAMS: Final = "answers are drawn token by token"
_LOGITS: Final = "the engine has no such hook on the logits"
_ENGINE: Final = "the engine does not draw its tokens so"
_LOGPROBS: Final = "the engine tells no log-probabilities"
_PROMPT_LOGPROBS: Final = "the engine tells no log-probabilities of the prompt"
_GRAMMAR: Final = "the answer cannot be held to a grammar"
_VLLM_GRAMMAR: Final = "superseded by response_format and structured_outputs"
_NO_TOOLS: Final = (
    "tool calls are not read out of this model's answers: that takes an output parser and a chat"
    " template that knows tools"
)
_SUPERSEDED: Final = "superseded by tools and tool_choice"
_TEXT_ONLY: Final = "text in and text out only"
_NOTHING_STORED: Final = "nothing is stored"
_NO_CACHE: Final = "no prompt cache is shared between requests"
_FIFO: Final = "requests are served in the order they come"
_NO_BUDGET: Final = "reasoning is not cut short"

PARAMETERS: Final[tuple[Parameter, ...]] = (
    Parameter("model", "served", "one of the served names; absent: the first of them"),
    Parameter("messages", "served", "rendered by the model's chat template", endpoints=_CHAT),
    Parameter("prompt", "served", "texts, or lists of token ids", endpoints=_COMPLETION),
    Parameter("stream", "served", "server-sent events instead of one JSON body"),
    Parameter("stream_options", "served", "include_usage, continuous_usage_stats"),
    Parameter(
        "max_completion_tokens",
        "served",
        "tokens to generate at most; wins over max_tokens; default: what the context leaves",
        endpoints=_CHAT,
    ),
    Parameter(
        "max_tokens",
        "served",
        "tokens to generate at most; default: chat what the context leaves, completions 16",
    ),
    Parameter("min_tokens", "served", "until so many tokens exist, no stop token is drawn"),
    Parameter("stop", "served", "up to 16 strings that end the text, each up to 1,024 characters"),
    Parameter("stop_token_ids", "served", "token ids that end the text, besides the model's own"),
    Parameter("include_stop_str_in_output", "served", "the stop string stays in the text"),
    Parameter("ignore_eos", "served", "the model's own stop tokens do not end the text"),
    Parameter("skip_special_tokens", "served", "special tokens have no text; default true"),
    Parameter(
        "add_special_tokens",
        "served",
        "the tokenizer adds its own tokens around the prompt; default: chat false (the template"
        " does), completions true",
    ),
    Parameter("temperature", "served", "0 is greedy; between 0 and 0.01 it is 0.01, as in vLLM"),
    Parameter("top_p", "served", "in (0, 1]"),
    Parameter("top_k", "served", "-1 or 0: all tokens"),
    Parameter("min_p", "served", "in [0, 1]", no_effect=(0,), needs="min_p", without=_ENGINE),
    Parameter(
        "seed",
        "served",
        "a signed 64-bit integer; choice i of several has seed + i",
        needs="seed",
        without=_ENGINE,
    ),
    Parameter(
        "presence_penalty",
        "served",
        "in [-2, 2], of tokens in the answer",
        no_effect=(0,),
        needs="presence_penalty",
        without=_LOGITS,
    ),
    Parameter(
        "frequency_penalty",
        "served",
        "in [-2, 2], of tokens in the answer, each time",
        no_effect=(0,),
        needs="frequency_penalty",
        without=_LOGITS,
    ),
    Parameter(
        "repetition_penalty",
        "served",
        "in [0.001, 1000], of tokens in the prompt or the answer; 1 is none",
        no_effect=(1,),
        needs="repetition_penalty",
        without=_LOGITS,
    ),
    Parameter(
        "logit_bias",
        "served",
        "token ids, as strings, and what is added to their logits; cut to -100 … 100, as in vLLM",
        no_effect=({},),
        needs="logit_bias",
        without=_LOGITS,
    ),
    Parameter(
        "logprobs",
        "served",
        "the log-probability of each token, of the model's own distribution",
        no_effect=(False,),
        endpoints=_CHAT,
        needs="logprobs",
        without=_LOGPROBS,
    ),
    Parameter(
        "top_logprobs",
        "served",
        "0 to 20 of the most likely tokens beside each; needs logprobs: true",
        no_effect=(0,),
        endpoints=_CHAT,
        needs="logprobs",
        without=_LOGPROBS,
    ),
    Parameter(
        "logprobs",
        "served",
        "the log-probability of each token, and 0 to 20 of the most likely beside it",
        endpoints=_COMPLETION,
        needs="logprobs",
        without=_LOGPROBS,
    ),
    Parameter("n", "served", "1 to 128 answers, each a request of its own to the engine"),
    Parameter(
        "echo",
        "served",
        "the prompt stands before the answer, and in logprobs, where the engine tells those of the"
        " prompt; in a chat its last message does, if that is the assistant's",
    ),
    Parameter(
        "prompt_logprobs",
        "served",
        "the log-probability of each token of the prompt, and 0 to 20 of the most likely beside it;"
        " not streamed, as in vLLM",
        needs="prompt_logprobs",
        without=_PROMPT_LOGPROBS,
    ),
    Parameter(
        "return_token_ids", "served", "the ids of the prompt and of the answer, beside the text"
    ),
    Parameter("return_tokens_as_token_ids", "served", "tokens in logprobs are written token_id:N"),
    Parameter(
        "add_generation_prompt",
        "served",
        "the prompt ends with the header of the assistant's turn; default true",
        endpoints=_CHAT,
    ),
    Parameter("chat_template_kwargs", "served", "variables for the chat template", endpoints=_CHAT),
    Parameter("reasoning_effort", "served", "a variable for the chat template", endpoints=_CHAT),
    Parameter(
        "include_reasoning",
        "served",
        "false leaves reasoning out of the answer; it is counted all the same",
        endpoints=_CHAT,
    ),
    Parameter(
        "tools",
        "served",
        "functions that the model may call; needs an output parser that reads calls",
        no_effect=([],),
        endpoints=_CHAT,
        needs="tools",
        without=_NO_TOOLS,
    ),
    Parameter(
        "tool_choice",
        "served",
        "auto; none leaves the tools out of the prompt; to force a call the answer is held to a"
        " grammar",
        no_effect=("none", "auto"),
        endpoints=_CHAT,
        needs="grammar",
        without=_GRAMMAR,
    ),
    Parameter(
        "response_format",
        "served",
        "text; json_object and json_schema hold the answer to a grammar",
        no_effect=({"type": "text"},),
        needs="grammar",
        without=_GRAMMAR,
    ),
    Parameter(
        "structured_outputs",
        "served",
        "vLLM's: json, json_object, regex, choice or grammar (Lark, as llguidance reads it)",
        needs="grammar",
        without=_GRAMMAR,
    ),
    Parameter(
        "parallel_tool_calls",
        "served",
        "false ends the answer before a second call",
        endpoints=_CHAT,
    ),
    Parameter("user", "inert", "nothing is accounted by user"),
    Parameter("safety_identifier", "inert", "nothing is accounted by user"),
    Parameter("metadata", "inert", _NOTHING_STORED),
    Parameter("store", "inert", _NOTHING_STORED),
    Parameter("service_tier", "inert", "there is one tier"),
    Parameter("priority", "inert", _FIFO),
    Parameter("best_of", "inert", "there are n candidates, hence they are the best"),
    Parameter("prompt_cache_key", "inert", _NO_CACHE),
    Parameter("prompt_cache_retention", "inert", _NO_CACHE),
    Parameter("cache_salt", "inert", _NO_CACHE),
    Parameter("session_id", "inert", "requests know nothing of each other"),
    Parameter("request_id", "inert", "ids are made here, so that they are unique"),
    Parameter("prediction", "inert", "a hint for speed", endpoints=_CHAT),
    Parameter("verbosity", "inert", "a hint that no model served here reads", endpoints=_CHAT),
    Parameter(
        "spaces_between_special_tokens", "inert", "only slow tokenizers of transformers read it"
    ),
    Parameter("stream_interval", "inert", "what is ready is sent at once"),
    Parameter("bad_words", "refused", _LOGITS, no_effect=([],)),
    Parameter("allowed_token_ids", "refused", _LOGITS),
    Parameter("suffix", "refused", "text is not inserted", no_effect=("",), endpoints=_COMPLETION),
    Parameter("guided_json", "refused", _VLLM_GRAMMAR),
    Parameter("guided_regex", "refused", _VLLM_GRAMMAR),
    Parameter("guided_choice", "refused", _VLLM_GRAMMAR),
    Parameter("guided_grammar", "refused", _VLLM_GRAMMAR),
    Parameter("functions", "refused", _SUPERSEDED, no_effect=([],), endpoints=_CHAT),
    Parameter("function_call", "refused", _SUPERSEDED, no_effect=("none", "auto"), endpoints=_CHAT),
    Parameter("web_search_options", "refused", "nothing is searched", endpoints=_CHAT),
    Parameter("documents", "refused", "documents are not served", no_effect=([],), endpoints=_CHAT),
    Parameter("modalities", "refused", _TEXT_ONLY, no_effect=(["text"],), endpoints=_CHAT),
    Parameter("audio", "refused", _TEXT_ONLY, endpoints=_CHAT),
    Parameter("prompt_embeds", "refused", _TEXT_ONLY, endpoints=_COMPLETION),
    Parameter("chat_template", "refused", "only the model's own template runs", endpoints=_CHAT),
    Parameter(
        "continue_final_message",
        "refused",
        "the last message is not continued",
        no_effect=(False,),
        endpoints=_CHAT,
    ),
    Parameter("truncate_prompt_tokens", "refused", "a prompt is never cut"),
    Parameter("thinking_token_budget", "refused", _NO_BUDGET),
    Parameter("use_beam_search", "refused", _NO_BEAMS, no_effect=(False,)),
    Parameter("length_penalty", "refused", _NO_BEAMS, no_effect=(1,)),
    Parameter("kv_transfer_params", "refused", "set between servers, never by a client"),
)

_KNOWN: Final[Mapping[Endpoint, Mapping[str, Parameter]]] = {
    endpoint: {each.name: each for each in PARAMETERS if endpoint in each.endpoints}
    for endpoint in ("chat", "completion")
}


def check_parameters(
    body: Mapping[str, object], endpoint: Endpoint, capabilities: Collection[Capability] = ()
) -> None:
    """Refuse what cannot be honoured; note what is not known.

    :param capabilities: the model's.
    :raises ~tilert_stream.errors.UnsupportedParameter: naming the field.
    """
    known = _KNOWN[endpoint]
    unknown: list[str] = []
    for name, value in body.items():
        parameter = known.get(name)
        if parameter is None:
            unknown.append(name)
        elif parameter.refuses(value, capabilities):
            raise UnsupportedParameter(_refusal(parameter, value), param=name)
    if unknown and logger.isEnabledFor(logging.DEBUG):
        shown = ", ".join(describe(name) for name in unknown[:LOGGED_NAMES_MAX])
        logger.debug("%d unknown fields ignored: %s", len(unknown), shown)


def _refusal(parameter: Parameter, value: object) -> str:
    fine = " or ".join(dumps(allowed).decode() for allowed in parameter.no_effect)
    fix = f"leave it out or send {fine}" if fine else "leave it out"
    why = parameter.without or parameter.note
    return f"{parameter.name} is {describe(value)}, which is not served ({why}): {fix}"
