"""Stop strings: a piece of an answer that is known beforehand is made the stop of the next one.

Where a server's greedy answers vary, nothing can be foretold and these checks are skipped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..check import Severity, Theme
from ..judging import require, skip
from ..session import PROMPT

if TYPE_CHECKING:
    from ..answer import Answer
    from ..session import Session

__all__ = ("STOP",)

STOP: Final = Theme("stop")
_ASKED: Final[dict[str, object]] = {"max_tokens": 48, "seed": 1}
_NEVER: Final = "\u2603 never \u2603"


def _piece(text: str, size: int) -> str:
    """A piece of ``text`` that does not come first at its very beginning."""
    pieces = (text[start : start + size] for start in range(len(text) // 3, len(text) - size))
    piece = next((piece for piece in pieces if piece.isascii() and text.find(piece) > 0), None)
    if piece is None:
        skip("the greedy answer has no piece to stop at")
    return piece


def _ends(answer: Answer, text: str) -> None:
    differ = f"the text is {answer.text[-60:]!r}; it must end as {text[-60:]!r} does"
    require(answer.text == text, differ, answer.exchange)
    require(answer.finish == "stop", f"finish_reason is {answer.finish!r}", answer.exchange)


async def _cuts(session: Session, size: int, *, stream: bool) -> None:
    text = (await session.reference()).text
    stop = _piece(text, size)
    answer = await session.ask(stop=stop, stream=stream, **_ASKED)
    _ends(answer, text[: text.find(stop)])


@STOP.check(
    "plain",
    Severity.MUST,
    "the text ends before the stop string, and the finish is 'stop'",
    "OpenAI's API reference",
)
async def _plain(session: Session) -> None:
    await _cuts(session, 4, stream=False)


@STOP.check(
    "stream",
    Severity.MUST,
    "no part of a stop string is streamed, and the finish is 'stop'",
    "what has been sent cannot be taken back",
)
async def _stream(session: Session) -> None:
    await _cuts(session, 4, stream=True)


@STOP.check(
    "across-tokens",
    Severity.MUST,
    "a stop string longer than a token is found, streamed and not",
    "compared token by token it never matches, and the answer runs to its budget",
)
async def _across(session: Session) -> None:
    for stream in (False, True):
        await _cuts(session, 11, stream=stream)


@STOP.check(
    "list",
    Severity.MUST,
    "of several stop strings the one that comes first ends the text",
    "OpenAI's API reference: up to four",
)
async def _list(session: Session) -> None:
    text = (await session.reference()).text
    stop = _piece(text, 4)
    answer = await session.ask(stop=[_NEVER, stop], stream=True, **_ASKED)
    _ends(answer, text[: text.find(stop)])


@STOP.check(
    "tail",
    Severity.MUST,
    "a text that ends like the beginning of a stop string is whole",
    "what was held back for the match is lost otherwise",
)
async def _tail(session: Session) -> None:
    text = (await session.reference()).text
    for stream in (False, True):
        answer = await session.ask(stop=text[-3:] + _NEVER, stream=stream, **_ASKED)
        differ = f"the text ends {answer.text[-20:]!r}; without stop {text[-20:]!r}"
        require(answer.text == text, differ, answer.exchange)


@STOP.check(
    "none",
    Severity.SHOULD,
    "null and an empty list are no stop",
    "SDKs and frameworks send them by default",
)
async def _none(session: Session) -> None:
    nothing: tuple[object, ...] = (None, [])
    for stop in nothing:
        exchange = await session.send(session.question(stop=stop))
        require(exchange.status == 200, f"stop {stop}: status {exchange.status}", exchange)


@STOP.check(
    "wrong-type",
    Severity.SHOULD,
    "a stop that is no string and no list of strings is refused with a 4xx",
    "ignored, it gives a text that nothing ends",
)
async def _wrong_type(session: Session) -> None:
    wrong: tuple[object, ...] = (5, {}, [5], [["a"]])
    for stop in wrong:
        exchange = await session.send(session.question(stop=stop))
        refused = 400 <= exchange.status < 500
        require(refused, f"stop {stop}: status {exchange.status}", exchange)


@STOP.check(
    "usage",
    Severity.SHOULD,
    "the tokens behind a stop are not counted",
    "users pay for text that they do not get",
)
async def _usage(session: Session) -> None:
    reference = await session.reference()
    answer = await session.ask(stop=_piece(reference.text, 4), **_ASKED)
    made, whole = answer.tokens(), reference.tokens()
    if made is None or whole is None:
        skip("tokens are not counted")
    require(made < whole, f"{made} tokens with the stop, {whole} without", answer.exchange)


@STOP.check(
    "included",
    Severity.MAY,
    "with include_stop_str_in_output the text ends with the stop string",
    "vLLM's extension",
)
async def _included(session: Session) -> None:
    text = (await session.reference()).text
    stop = _piece(text, 4)
    given = _ASKED | {"include_stop_str_in_output": True}
    answer = await session.ask_or_refusal("include_stop_str_in_output", PROMPT, stop=stop, **given)
    if answer is None:
        skip("it is refused")
    _ends(answer, text[: text.find(stop) + len(stop)])
