"""What is counted, and where it is said."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..check import Severity, Theme
from ..json_view import at, items, whole
from ..judging import require, skip

if TYPE_CHECKING:
    from ..answer import Answer
    from ..session import Session

__all__ = ("USAGE",)

USAGE: Final = Theme("usage")
_ASKED: Final = {"include_usage": True}
_THREE: Final = ("prompt_tokens", "completion_tokens", "total_tokens")


def _counted(answer: Answer) -> None:
    usage, exchange = answer.usage, answer.exchange
    for name in _THREE:
        require(whole(at(usage, name)), f"usage's {name} is no integer", exchange, b'"usage"')
    prompt, made, total = (answer.tokens(name) or 0 for name in _THREE)
    require(total == prompt + made, f"{prompt} + {made} is not {total}", exchange, b'"usage"')
    cached = at(usage, "prompt_tokens_details", "cached_tokens")
    if isinstance(cached, int):
        fits = 0 <= cached <= prompt
        require(fits, f"{cached} of {prompt} prompt tokens are cached", exchange, b'"usage"')


@USAGE.check(
    "plain",
    Severity.MUST,
    "an answer counts prompt, completion and total tokens; the total is their sum, and no more "
    "prompt tokens are cached than there are",
    "the openai SDK's CompletionUsage: three integers",
)
async def _plain(session: Session) -> None:
    _counted(await session.ask())


@USAGE.check(
    "not-unasked",
    Severity.MUST,
    "without stream_options.include_usage no chunk has a usage or an empty list of choices",
    "loops over choices[0] crash; frameworks that add usage up count twice",
)
async def _not_unasked(session: Session) -> None:
    answer = await session.ask(stream=True)
    for chunk in answer.chunks:
        require(at(chunk, "usage") is None, "a chunk has a usage", answer.exchange, b'"usage"')
        require(items(chunk, "choices"), "a chunk has no choices", answer.exchange, b"[]")


@USAGE.check(
    "asked",
    Severity.MUST,
    "with include_usage there is one more chunk, behind the finish, with choices [] and the usage",
    "OpenAI's API reference; several clients read usage from nowhere else",
)
async def _asked(session: Session) -> None:
    answer = await session.ask(stream=True, stream_options=_ASKED)
    exchange = answer.exchange
    with_usage = [n for n, chunk in enumerate(answer.chunks) if at(chunk, "usage") is not None]
    require(with_usage, "no chunk has a usage", exchange, len(exchange.body))
    empty = [n for n, chunk in enumerate(answer.chunks) if not items(chunk, "choices")]
    last = [len(answer.chunks) - 1]
    require(empty == last, "the last chunk, and no other, must have choices []", exchange, b"[]")
    require(with_usage[-1] == last[0], "the last chunk has no usage", exchange, len(exchange.body))
    _counted(answer)


@USAGE.check(
    "once",
    Severity.SHOULD,
    "with include_usage, all chunks but the last have no usage, or null",
    "frameworks add it up, or take the first for the end",
)
async def _once(session: Session) -> None:
    answer = await session.ask(stream=True, stream_options=_ASKED)
    early = any(at(chunk, "usage") is not None for chunk in answer.chunks[:-1])
    require(not early, "an earlier chunk has a usage", answer.exchange, b'"usage":{')


@USAGE.check(
    "counts",
    Severity.MUST,
    "max_tokens N gives N completion tokens where the finish is 'length', and never more",
    "a first token that is counted twice or lost, and chunks counted as tokens, show here",
)
async def _counts(session: Session) -> None:
    for budget in (1, 2, 3, 16):
        for stream in (False, True):
            options = {"stream_options": _ASKED} if stream else {}
            answer = await session.ask(max_tokens=budget, stream=stream, **options)
            made = answer.tokens()
            wrong = f"max_tokens {budget}, finish {answer.finish!r}: {made} completion tokens"
            fits = made == budget if answer.finish == "length" else (made or 0) <= budget
            require(made is not None and fits, wrong, answer.exchange, b'"usage"')


@USAGE.check(
    "same",
    Severity.MUST,
    "streamed and not, the same question counts the same prompt tokens",
    "users are billed by it",
)
async def _same(session: Session) -> None:
    plain = await session.ask()
    streamed = await session.ask(stream=True, stream_options=_ASKED)
    counts = plain.tokens("prompt_tokens"), streamed.tokens("prompt_tokens")
    require(counts[0] == counts[1], f"{counts[0]}, streamed {counts[1]}", streamed.exchange)


@USAGE.check(
    "continuous",
    Severity.MAY,
    "with continuous_usage_stats each chunk counts the tokens so far, never fewer than before, and "
    "the last count is the total",
    "vLLM's extension: the only way to count tokens by time where a chunk holds several",
)
async def _continuous(session: Session) -> None:
    options = _ASKED | {"continuous_usage_stats": True}
    exchange = await session.send(session.question(stream=True, stream_options=options))
    if 400 <= exchange.status < 500:
        skip("it is refused")
    answer = session.read(exchange)
    found = [at(chunk, "usage", "completion_tokens") for chunk in answer.chunks]
    counts = [count for count in found if isinstance(count, int)]
    if len(counts) < 2:
        skip("it is not served")
    require(counts == sorted(counts), f"the counts go back: {counts}", exchange, b'"usage"')
    require(len(counts) == len(found), "a chunk has no usage", exchange, b'"usage"')


@USAGE.check(
    "length",
    Severity.SHOULD,
    "finish_reason is 'length' where max_tokens ended the answer",
    "clients ask for the rest of a text by it",
)
async def _cut(session: Session) -> None:
    for stream in (False, True):
        answer = await session.ask(max_tokens=1, stream=stream)
        wrong = f"finish_reason is {answer.finish!r}"
        require(answer.finish == "length", wrong, answer.exchange, b'"finish_reason"')
