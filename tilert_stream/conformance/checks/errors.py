"""Requests that are wrong: each is told so, with a status and an object that clients can read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..answer import error_of
from ..check import Severity, Theme
from ..exchange import Ending, Request
from ..json_view import at, items, text_at
from ..judging import require, skip
from ..session import CHAT, COMPLETIONS, PROMPT

if TYPE_CHECKING:
    from ..exchange import Exchange
    from ..session import Session

__all__ = ("ERRORS",)

ERRORS: Final = Theme("errors")
_INVALID: Final = (400, 422)
_TRACES: Final = (b"Traceback (most recent call last)", b'File \\"/', b'.py\\", line ')


def _wrong(session: Session) -> dict[str, bytes]:
    """Bodies that nobody can serve, by what is wrong with them."""
    needed = "messages" if session.facts.path == CHAT else "prompt"
    return {
        "no JSON": b'{"model": ',
        "no object": b"[1, 2]",
        "empty": b"",
        f"{needed} is missing": session.fields().replace(f'"{needed}"'.encode(), b'"other"'),
        f"{needed} is a number": session.fields(**{needed: 5}),
        "max_tokens is a word": session.fields(max_tokens="five"),
        "temperature is a list": session.fields(temperature=[1]),
    }


def _nested(exchange: Exchange) -> None:
    error = error_of(exchange)
    require(isinstance(error, dict), "the body is no {'error': {…}}", exchange)
    require(text_at(error, "message"), "the error has no message", exchange)
    require(text_at(error, "type"), "the error has no type", exchange)
    for name in ("param", "code"):
        value = at(error, name)
        fine = value is None or isinstance(value, str | int)
        require(fine, f"the error's {name} is no string", exchange)


@ERRORS.check(
    "invalid",
    Severity.MUST,
    "a body that is no JSON, or lacks or spoils a field, is answered with 400 or 422",
    "a 5xx is retried by every SDK, and counted as the server's fault",
)
async def _invalid(session: Session) -> None:
    for kind, body in _wrong(session).items():
        exchange = await session.post(body)
        require(exchange.status in _INVALID, f"{kind}: status {exchange.status}", exchange)


@ERRORS.check(
    "object",
    Severity.MUST,
    "an error is {'error': {message, type, param, code}}",
    "the openai SDK reads code, param and type from there; of a string or a flat object, none",
)
async def _object(session: Session) -> None:
    for body in _wrong(session).values():
        _nested(await session.post(body))


@ERRORS.check(
    "json-type",
    Severity.SHOULD,
    "an error has the Content-Type application/json",
    "clients that go by it show the raw text otherwise",
)
async def _json_type(session: Session) -> None:
    exchange = await session.post(b"{")
    kind = exchange.header("content-type") or ""
    require(kind.lower().startswith("application/json"), f"Content-Type is {kind!r}", exchange)


@ERRORS.check(
    "names-field",
    Severity.SHOULD,
    "the error of a wrong field names it, in param or in the message",
    "nobody finds the fault otherwise",
)
async def _names(session: Session) -> None:
    given: dict[str, object] = {"max_tokens": "five", "temperature": [1], "stop": 5}
    for name, value in given.items():
        exchange = await session.send(session.question(**{name: value}))
        error = error_of(exchange)
        words = f"{text_at(error, 'param')} {text_at(error, 'message')}"
        require(name in words, f"the error does not name {name}", exchange)


@ERRORS.check(
    "stream",
    Severity.MUST,
    "a wrong request with stream has a real error status, not 200 and an event",
    "SDKs raise by the status, and benchmark clients count a 200 as a success",
)
async def _stream(session: Session) -> None:
    exchange = await session.send(session.question(stream=True, max_tokens="five"))
    require(exchange.status in _INVALID, f"status {exchange.status}", exchange)
    kind = exchange.header("content-type") or ""
    require("event-stream" not in kind, f"Content-Type is {kind!r}", exchange)


@ERRORS.check(
    "range",
    Severity.SHOULD,
    "values out of their range are refused: temperature -1, top_p 2, max_tokens -1",
    "OpenAI's API reference; clamped in silence they give other answers than asked for",
)
async def _range(session: Session) -> None:
    for name, value in (("temperature", -1), ("top_p", 2), ("max_tokens", -1)):
        exchange = await session.send(session.question(**{name: value}))
        shown = f"{name} {value}: status {exchange.status}"
        require(exchange.status in _INVALID, shown, exchange)


@ERRORS.check(
    "model",
    Severity.SHOULD,
    "a model that is not served is answered with 404",
    "OpenAI's API; routers and SDKs tell a wrong name by it",
)
async def _model(session: Session) -> None:
    exchange = await session.send(session.question(model="no-such-model-here"))
    require(exchange.status == 404, f"status {exchange.status}; it must be 404", exchange)
    _nested(exchange)


@ERRORS.check(
    "path",
    Severity.SHOULD,
    "an unknown path is answered with 404 and an error object",
    "SDKs show the message; of an HTML page they show nothing",
    needs="nothing",
)
async def _path(session: Session) -> None:
    exchange = await session.get("/v1/no-such-path")
    require(exchange.status == 404, f"status {exchange.status}; it must be 404", exchange)
    _nested(exchange)


@ERRORS.check(
    "method",
    Severity.SHOULD,
    "GET on an endpoint of POST is answered with 405, Allow and an error object",
    "RFC 9110, 15.5.6",
)
async def _method(session: Session) -> None:
    exchange = await session.get(session.facts.path)
    require(exchange.status == 405, f"status {exchange.status}; it must be 405", exchange)
    require("POST" in (exchange.header("allow") or ""), "Allow does not name POST", exchange)
    _nested(exchange)


@ERRORS.check(
    "too-long",
    Severity.SHOULD,
    "a max_tokens that no context holds is refused with 400",
    "cut in silence, the answer ends where nobody expects it",
)
async def _too_long(session: Session) -> None:
    # With a stop at once, a server that does not refuse it ends soon.
    question = session.question("a", max_tokens=2_000_000_000, stop=["a", "e", " ", "o", "\n"][:4])
    exchange = await session.send(question)
    require(exchange.status in _INVALID, f"status {exchange.status}", exchange)


@ERRORS.check(
    "no-traceback",
    Severity.SHOULD,
    "no error shows a traceback or a path of the server",
    "it tells strangers what runs there",
)
async def _no_traceback(session: Session) -> None:
    for body in _wrong(session).values():
        exchange = await session.post(body)
        for trace in _TRACES:
            require(trace not in exchange.body, "here is a traceback", exchange, trace)


@ERRORS.check(
    "key",
    Severity.MUST,
    "a wrong key, and none, are answered with 401 and an error object; the answer holds no key",
    "SDKs raise AuthenticationError by it",
)
async def _key(session: Session) -> None:
    if session.target.api_key is None:
        skip("no --api-key is given")
    for value in ("Bearer wrong", "Basic wrong", ""):
        exchange = await session.send(
            Request(
                path=session.facts.path,
                body=session.fields(),
                headers=(("authorization", value),),
            )
        )
        require(exchange.status == 401, f"{value!r}: status {exchange.status}", exchange)
        _nested(exchange)
        leaked = session.target.api_key.encode() in exchange.body
        require(not leaked, "the error holds the key", None)


@ERRORS.check(
    "serves-on",
    Severity.MUST,
    "after wrong requests the next right one is answered",
    "one client's mistake must not end the others' service",
)
async def _serves_on(session: Session) -> None:
    for body in _wrong(session).values():
        exchange = await session.post(body)
        require(exchange.ending is Ending.COMPLETE, f"the error was {exchange.ending}", exchange)
    await session.ask()


@ERRORS.check(
    "prompt-list",
    Severity.SHOULD,
    "a list of two prompts gets two choices, or a 4xx that names prompt",
    "a single choice loses an answer in silence",
    needs="completions",
)
async def _prompts(session: Session) -> str | None:
    given = {"prompt": ["one", "two"]}
    answer = await session.ask_or_refusal("prompt", PROMPT, COMPLETIONS, **given)
    if answer is None:
        return "refused"
    count = len(items(answer.chunks[0], "choices"))
    require(count == 2, f"{count} choices for two prompts", answer.exchange)
    return None
