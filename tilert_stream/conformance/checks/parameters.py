"""Parameters: each is served with an effect that is seen, or refused by name.

Inert ones, which ask for nothing that could be seen, are accepted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..check import Severity, Theme
from ..json_view import at, items, parsed, text_at
from ..judging import require, skip
from ..session import CHAT, COMPLETIONS, PROMPT

if TYPE_CHECKING:
    from ..session import Session

__all__ = ("PARAMETERS",)

PARAMETERS: Final = Theme("parameters")
_REFUSED: Final = "refused by name"
_TOOL: Final = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}


@PARAMETERS.check(
    "max-tokens",
    Severity.MUST,
    "max_completion_tokens bounds the answer, and wins over max_tokens",
    "OpenAI's API: max_tokens is its old name; vllm bench serve sends the new one",
    needs="chat",
)
async def _max_tokens(session: Session) -> None:
    answer = await session.ask(PROMPT, CHAT, max_completion_tokens=2, max_tokens=9)
    made = answer.tokens()
    require(made is not None and made <= 2, f"{made} tokens; 2 were allowed", answer.exchange)


@PARAMETERS.check(
    "bench-body",
    Severity.MUST,
    "the body of vllm bench serve is answered with text, usage and [DONE]",
    "a benchmark that every server is measured with",
)
async def _bench_body(session: Session) -> None:
    length = "max_completion_tokens" if session.facts.path == CHAT else "max_tokens"
    answer = await session.ask(
        **{length: 8},
        stream=True,
        stream_options={"include_usage": True},
        repetition_penalty=1.0,
        ignore_eos=True,
        best_of=1,
    )
    require(answer.text, "the stream has no text", answer.exchange)
    require(answer.tokens() is not None, "the stream has no usage", answer.exchange)


@PARAMETERS.check(
    "inert",
    Severity.MUST,
    "user, metadata, store, best_of and fields that nobody knows are accepted",
    "SDKs, gateways and benchmarks send them; InferenceX sends best_of",
)
async def _inert(session: Session) -> None:
    given: dict[str, object] = {
        "user": "someone",
        "metadata": {"run": "1"},
        "store": False,
        "best_of": 1,
        "a_field_that_nobody_knows": 1,
    }
    for name, value in given.items():
        exchange = await session.send(session.question(**{name: value}))
        require(exchange.status == 200, f"{name}: status {exchange.status}", exchange)


@PARAMETERS.check(
    "null",
    Severity.SHOULD,
    "null is the same as leaving a field out",
    "SDKs of typed languages write every field",
)
async def _null(session: Session) -> None:
    exchange = await session.send(
        session.question(
            stop=None,
            seed=None,
            top_p=None,
            n=None,
            presence_penalty=None,
            logit_bias=None,
            stream_options=None,
            user=None,
        )
    )
    require(exchange.status == 200, f"status {exchange.status}; it must be 200", exchange)


@PARAMETERS.check(
    "content-parts",
    Severity.MUST,
    "a content that is a list of text parts is the same prompt as its text",
    "OpenAI's API reference; many frameworks send nothing else",
    needs="chat",
)
async def _parts(session: Session) -> None:
    text = await session.ask("Say hello", CHAT)
    parts = await session.ask([{"type": "text", "text": "Say hello"}], CHAT)
    counts = text.tokens("prompt_tokens"), parts.tokens("prompt_tokens")
    require(counts[0] == counts[1], f"{counts[0]} tokens, in parts {counts[1]}", parts.exchange)


@PARAMETERS.check(
    "n",
    Severity.MUST,
    "n 2 gives two choices, or is refused by name",
    "one choice in silence loses an answer; a hand-over of one cache to two hangs",
)
async def _n(session: Session) -> str | None:
    answer = await session.ask_or_refusal("n", n=2, temperature=1)
    if answer is None:
        return _REFUSED
    count = len(items(answer.chunks[0], "choices"))
    require(count == 2, f"{count} choices; 2 were asked for", answer.exchange)
    return None


@PARAMETERS.check(
    "logprobs",
    Severity.MUST,
    "logprobs gives one entry a token, with top_logprobs as asked, or is refused by name",
    "evaluations add them up: a missing or doubled entry is a wrong score",
    needs="chat",
)
async def _logprobs(session: Session) -> str | None:
    answer = await session.ask_or_refusal("logprobs", PROMPT, CHAT, logprobs=True, top_logprobs=2)
    if answer is None:
        return _REFUSED
    entries = items(answer.chunks[0], "choices", 0, "logprobs", "content")
    made = answer.tokens()
    stopped = answer.finish == "stop"
    fits = len(entries) in ((made or 0) - stopped, made)
    require(entries and fits, f"{len(entries)} entries, {made} tokens", answer.exchange)
    for entry in entries:
        fine = isinstance(at(entry, "logprob"), float | int) and items(entry, "top_logprobs")
        require(fine, "an entry has no logprob or no top_logprobs", answer.exchange)
    return None


@PARAMETERS.check(
    "json-object",
    Severity.MUST,
    "response_format json_object gives JSON, or is refused by name",
    "callers parse what they get",
    needs="chat",
)
async def _json_object(session: Session) -> str | None:
    answer = await session.ask_or_refusal(
        "response_format",
        "Give me a JSON object with the key a and the value 1.",
        CHAT,
        response_format={"type": "json_object"},
        max_tokens=64,
    )
    if answer is None:
        return _REFUSED
    content = text_at(answer.chunks[0], "choices", 0, "message", "content")
    if answer.finish == "length":
        begins = content.lstrip()[:1] in ("{", "")
        require(begins, f"the text is no JSON: {content[:60]!r}", answer.exchange)
        return "cut by max_tokens"
    fine = isinstance(parsed(content.encode(errors="replace")), dict)
    require(fine, f"the text is no JSON object: {content[:60]!r}", answer.exchange)
    return None


@PARAMETERS.check(
    "tools",
    Severity.MUST,
    "tool_choice 'required' gives a call whose arguments are JSON, or is refused by name",
    "agents wait for the call",
    needs="chat",
)
async def _tools(session: Session) -> str | None:
    answer = await session.ask_or_refusal(
        "tool",
        "What is the weather in Paris?",
        CHAT,
        tools=[_TOOL],
        tool_choice="required",
        max_tokens=256,
    )
    if answer is None:
        return _REFUSED
    calls = items(answer.chunks[0], "choices", 0, "message", "tool_calls")
    if not calls and answer.finish == "length":
        skip("max_tokens ended the answer before its call")
    require(calls, "there is no call", answer.exchange)
    for call in calls:
        named = text_at(call, "id") and text_at(call, "function", "name")
        require(named, "a call has no id or no name", answer.exchange)
        arguments = parsed(text_at(call, "function", "arguments").encode(errors="replace"))
        complete = isinstance(arguments, dict) or answer.finish == "length"
        require(complete, "the arguments are no JSON object", answer.exchange)
    return None


@PARAMETERS.check(
    "logit-bias",
    Severity.SHOULD,
    "a bias of 100 on one token changes the answer, or is refused by name",
    "in silence it does nothing, and nobody notices",
)
async def _logit_bias(session: Session) -> str | None:
    plain = await session.reference()
    given: dict[str, object] = {"logit_bias": {"34": 100}, "max_tokens": 48, "seed": 1}
    answer = await session.ask_or_refusal("logit_bias", PROMPT, **given)
    if answer is None:
        return _REFUSED
    require(answer.text != plain.text, "the answer is the same as without", answer.exchange)
    return None


@PARAMETERS.check(
    "seed",
    Severity.SHOULD,
    "one seed gives one answer at temperature 1, or is refused by name",
    "evaluations are repeated by it",
)
async def _seed(session: Session) -> str | None:
    texts: list[str] = []
    for _ in range(2):
        answer = await session.ask_or_refusal("seed", seed=7, temperature=1, max_tokens=24)
        if answer is None:
            return _REFUSED
        texts.append(answer.text)
    require(texts[0] == texts[1], f"{texts[0][:60]!r}, then {texts[1][:60]!r}")
    return None


@PARAMETERS.check(
    "echo",
    Severity.SHOULD,
    "echo puts the prompt before the text, or is refused by name",
    "evaluation harnesses score prompts by it",
    needs="completions",
)
async def _echo(session: Session) -> str | None:
    answer = await session.ask_or_refusal("echo", "One two", COMPLETIONS, echo=True)
    if answer is None:
        return _REFUSED
    # An answer that only repeats the prompt shows too little: both must stand there.
    plain = await session.ask("One two", COMPLETIONS)
    begins = answer.text.startswith("One two") and len(answer.text) > len(plain.text)
    require(begins, f"the text begins {answer.text[:40]!r}", answer.exchange)
    return None


@PARAMETERS.check(
    "min-tokens",
    Severity.MAY,
    "min_tokens above max_tokens is refused with a 4xx",
    "vLLM's extension; one of the two would have to be ignored",
)
async def _min_tokens(session: Session) -> None:
    exchange = await session.send(session.question(min_tokens=32, max_tokens=4))
    require(400 <= exchange.status < 500, f"status {exchange.status}", exchange)


@PARAMETERS.check(
    "token-ids",
    Severity.MAY,
    "a prompt of token ids is as long as its list",
    "OpenAI's completions; benchmarks of exact lengths send them",
    needs="completions",
)
async def _token_ids(session: Session) -> str | None:
    answer = await session.ask_or_refusal("prompt", [40, 41, 42, 43], COMPLETIONS)
    if answer is None:
        return _REFUSED
    count = answer.tokens("prompt_tokens")
    require(count == 4, f"{count} prompt tokens; 4 were sent", answer.exchange)
    return None
