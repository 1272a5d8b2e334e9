"""The event stream, byte for byte and chunk for chunk."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from ..answer import DONE, Answer, events_of, said
from ..check import Severity, Theme
from ..json_view import at, items, parsed, text_at, whole
from ..judging import require, skip
from ..session import CHAT, COMPLETIONS, PROMPT

if TYPE_CHECKING:
    from ..exchange import Exchange
    from ..session import Session

__all__ = ("SSE", "judge_first_chunk")

SSE: Final = Theme("sse")
EARLY: Final = 0.05
"""Seconds by which a chunk without text may precede the first text."""
_REASONS: Final = (None, "stop", "length", "tool_calls", "content_filter", "function_call")
_SEPARATORS: Final = tuple(mark.encode() for mark in ("\u2028", "\u2029", "\x85"))
_FRAME: Final = re.compile(rb"(?:data: [^\r\n]+(?:\r\n\r\n|\n\n))*")


async def _stream(
    session: Session, prompt: object = PROMPT, path: str | None = None, /, **given: object
) -> Answer:
    return await session.ask(prompt, path, stream=True, **given)


@SSE.check(
    "framing",
    Severity.MUST,
    "every event is one line 'data: ' and an empty line, also the last one",
    "HTML standard, event streams; the benchmark clients of vLLM and SGLang want the space and "
    "the empty line",
)
async def _framing(session: Session) -> None:
    exchange = (await _stream(session)).exchange
    body = bytes(exchange.body)
    framed = _FRAME.match(body)
    right = framed.end() if framed else 0
    rest = body[right:]
    other = rest.startswith((b":", b"id:", b"event:", b"retry:"))
    require(body, "the stream is empty", exchange)
    require(not rest or other, "here is no 'data: …' with an empty line behind it", exchange, right)
    if other:
        require(b"\n\n" in rest or b"\r\n\r\n" in rest, "an event does not end", exchange, right)


@SSE.check(
    "data-only",
    Severity.MUST,
    "there are no comments and no id, event or retry lines, unless asked for",
    "each of them breaks a benchmark client: InferenceX, vllm bench serve, SGLang's serving",
)
async def _data_only(session: Session) -> None:
    exchange = (await _stream(session)).exchange
    for line in exchange.body.splitlines():
        other = line and not line.startswith(b"data:")
        require(not other, "here is a line that is not 'data:'", exchange, bytes(line))


@SSE.check(
    "done",
    Severity.MUST,
    "'data: [DONE]' is the last event, and there is one",
    "OpenAI's API reference; clients wait for it, and some fail on what comes behind it",
)
async def _done(session: Session) -> None:
    exchange = (await _stream(session)).exchange
    events = events_of(exchange.body)
    end = max(0, len(exchange.body) - 80)
    require(events and events[-1] == DONE, "the last event is not [DONE]", exchange, end)
    require(events.count(DONE) == 1, "[DONE] comes more than once", exchange, DONE)


@SSE.check(
    "json",
    Severity.MUST,
    "every other event is one JSON object",
    "clients parse each event by itself",
)
async def _json(session: Session) -> None:
    exchange = (await _stream(session)).exchange
    for data in events_of(exchange.body):
        fine = data == DONE or isinstance(parsed(data), dict)
        require(fine, "here is no JSON object", exchange, data)


@SSE.check(
    "line-breaks",
    Severity.SHOULD,
    "U+2028, U+2029 and U+0085 in a text are escaped in its JSON",
    "clients that split lines as Python's str.splitlines does lose the event, as httpx did",
)
async def _line_breaks(session: Session) -> None:
    prompt = "Repeat exactly, and nothing else: a\u2028b\u2029c\x85d"
    answer = await _stream(session, prompt, max_tokens=128)
    if not any(mark.decode() in answer.text for mark in _SEPARATORS):
        skip("the model did not write any of them")
    for mark in _SEPARATORS:
        raw = mark in answer.exchange.body
        require(not raw, f"here {mark.decode()!a} stands as it is", answer.exchange, mark)


@SSE.check(
    "shape",
    Severity.MUST,
    "every chunk has id, object, created, model and choices; every choice an index and a delta",
    "the openai SDK's ChatCompletionChunk, strictly validated",
    needs="chat",
)
async def _shape(session: Session) -> None:
    answer = await _stream(session, PROMPT, CHAT)
    exchange = answer.exchange
    for chunk in answer.chunks:
        spot = text_at(chunk, "id").encode()
        require(text_at(chunk, "id"), "a chunk's 'id' is no string", exchange)
        kind = at(chunk, "object")
        require(kind == "chat.completion.chunk", f"a chunk's 'object' is {kind!r}", exchange, spot)
        require(whole(at(chunk, "created")), "a chunk's 'created' is no integer", exchange, spot)
        require(isinstance(at(chunk, "choices"), list), "'choices' is no list", exchange, spot)
        for choice in items(chunk, "choices"):
            require(whole(at(choice, "index")), "a choice has no index", exchange, spot)
            require(isinstance(at(choice, "delta"), dict), "'delta' is no object", exchange, spot)
            reason = at(choice, "finish_reason")
            require(reason in _REASONS, f"finish_reason is {reason!r}", exchange, spot)


@SSE.check(
    "completions",
    Severity.MUST,
    "every chunk of a completion is a text_completion whose choices have an index and a text",
    "the openai SDK's Completion",
    needs="completions",
)
async def _completions(session: Session) -> None:
    answer = await _stream(session, PROMPT, COMPLETIONS)
    for chunk in answer.chunks:
        kind = at(chunk, "object")
        require(kind == "text_completion", f"a chunk's 'object' is {kind!r}", answer.exchange)
        for choice in items(chunk, "choices"):
            require(whole(at(choice, "index")), "a choice has no index", answer.exchange)
            text = at(choice, "text")
            require(isinstance(text, str), "a choice's 'text' is no string", answer.exchange)


@SSE.check(
    "envelope",
    Severity.MUST,
    "id, created and model are the same in every chunk",
    "clients that join chunks by their id split one answer into many",
)
async def _envelope(session: Session) -> None:
    usage = {"include_usage": True}
    answer = await _stream(session, stream_options=usage)
    for name in ("id", "created", "model"):
        found = [at(chunk, name) for chunk in answer.chunks]
        other = next((value for value in found if value != found[0]), None)
        require(other is None, f"{name} is {found[0]!r}, then {other!r}", answer.exchange)


@SSE.check(
    "role",
    Severity.SHOULD,
    "the first delta has the role 'assistant', and no later one has a role",
    "clients begin a message at each role; ai-sdk and openai-python check its value",
    needs="chat",
)
async def _role(session: Session) -> None:
    answer = await _stream(session, PROMPT, CHAT)
    roles = [at(choice, "delta", "role") for choice in answer.choices]
    first = roles[0] if roles else None
    require(first == "assistant", f"the first delta's role is {first!r}", answer.exchange)
    later = [role for role in roles[1:] if role is not None]
    require(not later, f"the role comes again: {later[:1]}", answer.exchange, b'"role"')


@SSE.check(
    "first-chunk",
    Severity.SHOULD,
    "no chunk with choices comes long before the first text",
    "vllm bench serve and InferenceX take it for the first token: the time to first token is wrong",
)
async def _first_chunk(session: Session) -> None:
    judge_first_chunk((await _stream(session)).exchange)


def judge_first_chunk(exchange: Exchange) -> None:
    """Compare the times of the first chunk and of the first text.

    :raises ~tilert_stream.conformance.judging.Failed: too long between them.
    """
    first: float | None = None
    for data in events_of(exchange.body):
        for choice in items(parsed(data), "choices"):
            came = exchange.time_of(exchange.body.find(data))
            first = came if first is None else first
            if said(choice):
                early = came - first
                shown = f"a chunk without text came {early * 1000:.0f} ms before the first text"
                require(early <= EARLY, shown, exchange)
                return


@SSE.check(
    "finish",
    Severity.MUST,
    "a finish_reason comes once, and no text comes behind it",
    "clients end the message there and lose what follows, or run on without it",
)
async def _finish(session: Session) -> None:
    answer = await _stream(session)
    reasons = [text_at(choice, "finish_reason") for choice in answer.choices]
    given = [number for number, reason in enumerate(reasons) if reason]
    require(len(given) == 1, f"finish_reason comes {len(given)} times", answer.exchange)
    behind = "".join(said(choice) for choice in answer.choices[given[0] + 1 :])
    require(not behind, f"text behind the finish: {behind[:40]!r}", answer.exchange)


@SSE.check(
    "same-text",
    Severity.SHOULD,
    "the deltas joined are the text of the same question without stream, with the same finish",
    "two paths of one server must not differ; where greedy answers vary, this is skipped",
)
async def _same_text(session: Session) -> None:
    plain = await session.reference()
    streamed = await _stream(session, max_tokens=48, seed=1)
    differ = f"streamed {streamed.text[:60]!r}, not streamed {plain.text[:60]!r}"
    require(streamed.text == plain.text, differ, streamed.exchange)
    ends = f"streamed {streamed.finish!r}, not streamed {plain.finish!r}"
    require(streamed.finish == plain.finish, ends, streamed.exchange)
