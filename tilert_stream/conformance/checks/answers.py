"""An ordinary answer that is not streamed: is there one, in the shape that clients parse."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..check import Severity, Theme
from ..json_view import at, items, parsed, text_at, whole
from ..judging import require, skip
from ..session import CHAT, COMPLETIONS, PROMPT

if TYPE_CHECKING:
    from ..session import Session

__all__ = ("ANSWERS",)

ANSWERS: Final = Theme("answers")
_REASONS: Final = ("stop", "length", "tool_calls", "content_filter", "function_call")


@ANSWERS.check(
    "chat",
    Severity.MUST,
    "a chat of one message is answered with 200 and a chat.completion with every required field",
    "OpenAI's API reference; the openai SDK's strict validation",
    needs="nothing",
)
async def _chat(session: Session) -> None:
    await _shape(session, "chat", CHAT, "chat.completion")


@ANSWERS.check(
    "completions",
    Severity.MUST,
    "a prompt is answered with 200 and a text_completion that has every required field",
    "OpenAI's API reference; the openai SDK's strict validation",
    needs="nothing",
)
async def _completions(session: Session) -> None:
    await _shape(session, "completions", COMPLETIONS, "text_completion")


@ANSWERS.check(
    "either",
    Severity.MUST,
    "at least one of chat and completions is answered",
    "nothing else can be said about a server that answers neither",
    needs="nothing",
)
async def _either(session: Session) -> None:
    exchange = await session.send(session.question())
    missing = session.facts.missing
    require(len(missing) < 2, "; ".join(missing.values()), exchange)


async def _shape(session: Session, name: str, path: str, kind: str) -> None:
    missing = session.facts.missing.get(name, "")
    if missing and "not served" in missing:
        skip(missing)
    answer = await session.ask(PROMPT, path)
    exchange, body = answer.exchange, parsed(answer.exchange.body)
    require(text_at(body, "id"), "'id' is no string", exchange)
    require(at(body, "object") == kind, f"'object' is not '{kind}'", exchange)
    require(whole(at(body, "created")), "'created' is no integer", exchange)
    require(items(body, "choices"), "'choices' is no list of answers", exchange)
    choice = at(body, "choices", 0)
    require(at(choice, "index") == 0, "the choice's 'index' is not 0", exchange)
    reason = at(choice, "finish_reason")
    require(reason in _REASONS, f"finish_reason is {reason!r}; it must be a known one", exchange)
    if name == "chat":
        require(
            at(choice, "message", "role") == "assistant", "the role is not 'assistant'", exchange
        )
        content = at(choice, "message", "content")
        require(content is None or isinstance(content, str), "'content' is no string", exchange)
    else:
        require(isinstance(at(choice, "text"), str), "'text' is no string", exchange)
