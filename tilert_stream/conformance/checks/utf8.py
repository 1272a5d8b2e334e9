"""Text that is not ASCII: in prompts, in tokens that are half a character, in events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..answer import DONE, events_of
from ..check import Severity, Theme
from ..exchange import Request
from ..json_view import parsed
from ..judging import Failed, require, skip

if TYPE_CHECKING:
    from ..session import Session

__all__ = ("UTF8",)

UTF8: Final = Theme("utf8")
_MIXED: Final = (
    "\U0001f336 \u4f60\u597d \ud55c\uad6d\uc5b4 \U0001f468\u200d\U0001f469\u200d\U0001f467 \xe9"
)
_PROMPT: Final = f"Repeat exactly, and nothing else: {_MIXED}"
_BROKEN: Final = "\ufffd"


@UTF8.check(
    "whole-characters",
    Severity.MUST,
    "a stream that is not cut holds no U+FFFD that the answer without stream does not hold",
    "tokens are bytes: decoded one by one, a character of several tokens becomes U+FFFD",
)
async def _whole(session: Session) -> None:
    plain = await session.ask(_PROMPT, max_tokens=96)
    streamed = await session.ask(_PROMPT, max_tokens=96, stream=True)
    found = streamed.text.count(_BROKEN)
    more = f"{found} times U+FFFD streamed, {plain.text.count(_BROKEN)} times not streamed"
    require(found <= plain.text.count(_BROKEN), more, streamed.exchange, _BROKEN.encode())


@UTF8.check(
    "every-cut",
    Severity.SHOULD,
    "for each max_tokens from 1 to 12 the deltas joined are the text without stream",
    "an answer that ends inside a character loses it in one way and shows U+FFFD in the other",
)
async def _every_cut(session: Session) -> None:
    await session.reference()
    for budget in range(1, 13):
        plain = await session.ask(_MIXED, max_tokens=budget)
        streamed = await session.ask(_MIXED, max_tokens=budget, stream=True)
        differ = f"max_tokens {budget}: streamed {streamed.text!r}, not streamed {plain.text!r}"
        require(streamed.text == plain.text, differ, streamed.exchange)


@UTF8.check(
    "events",
    Severity.MUST,
    "each event is valid UTF-8 by itself, and its JSON too",
    "RFC 8259, 8.1; HTML standard, event streams",
)
async def _events(session: Session) -> None:
    exchange = (await session.ask(_PROMPT, max_tokens=96, stream=True)).exchange
    for data in events_of(exchange.body):
        try:
            data.decode()
        except UnicodeDecodeError as error:
            raise Failed(f"here is no UTF-8: {error.reason}", exchange) from error
        fine = data == DONE or parsed(data) is not None
        require(fine, "here is no JSON", exchange, data)


@UTF8.check(
    "escapes",
    Severity.MUST,
    "a prompt is the same with its characters as they are and as \\u escapes",
    "RFC 8259, 7: clients send either; Python's json escapes by default",
)
async def _escapes(session: Session) -> None:
    raw = session.fields(_PROMPT)
    counts: list[object] = []
    for body in (raw, _escaped(raw)):
        answer = session.read(await session.post(body))
        counts.append(answer.tokens("prompt_tokens"))
    require(counts[0] == counts[1], f"{counts[0]} prompt tokens, escaped {counts[1]}")


@UTF8.check(
    "trickle",
    Severity.MUST,
    "a request that comes byte by byte is the same request",
    "networks split where they like, also inside a character",
)
async def _trickle(session: Session) -> None:
    body = session.fields(_MIXED)
    whole = session.read(await session.post(body))
    split = session.read(
        await session.send(Request(path=session.facts.path, body=body, trickle=True))
    )
    counts = whole.tokens("prompt_tokens"), split.tokens("prompt_tokens")
    require(counts[0] == counts[1], f"{counts[0]} prompt tokens, split {counts[1]}", split.exchange)


@UTF8.check(
    "lone-surrogate",
    Severity.SHOULD,
    "half a surrogate pair in a prompt is answered or refused with a 4xx",
    "it is JSON by the grammar and no text: encoders raise, and the status is 500",
)
async def _surrogate(session: Session) -> None:
    body = session.fields("MARK").replace(b"MARK", b"a\\ud800b")
    exchange = await session.post(body)
    fine = exchange.status == 200 or 400 <= exchange.status < 500
    require(fine, f"status {exchange.status}", exchange)


@UTF8.check(
    "broken-body",
    Severity.SHOULD,
    "a body that is not UTF-8 is refused with a 4xx",
    "RFC 8259, 8.1",
)
async def _broken(session: Session) -> None:
    exchange = await session.post(session.fields("MARK").replace(b"MARK", b"a\xff\xfeb"))
    require(400 <= exchange.status < 500, f"status {exchange.status}", exchange)


@UTF8.check(
    "spaces",
    Severity.SHOULD,
    "white space at the beginning and the end of deltas is kept",
    "trimmed deltas glue words together",
)
async def _spaces(session: Session) -> None:
    plain = await session.reference()
    if " " not in plain.text:
        skip("the answer has no space")
    streamed = await session.ask(max_tokens=48, seed=1, stream=True)
    counts = plain.text.count(" "), streamed.text.count(" ")
    require(counts[0] == counts[1], f"{counts[0]} spaces, streamed {counts[1]}", streamed.exchange)


def _escaped(body: bytes) -> bytes:
    """JSON in ASCII alone: characters beyond the first plane as surrogate pairs."""
    parts: list[bytes] = []
    for letter in body.decode():
        units = letter.encode("utf-16-be")
        pairs = [units[n : n + 2] for n in range(0, len(units), 2)]
        escaped = b"".join(b"\\u%04x" % int.from_bytes(pair) for pair in pairs)
        parts.append(letter.encode() if letter.isascii() else escaped)
    return b"".join(parts)
