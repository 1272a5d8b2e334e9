"""Stages small enough to see through, for tests of what links and runs them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tilert_stream.abc import Receive, Send
from tilert_stream.events import Finished, GenerateRequest, TokenBatch
from tilert_stream.lease import Ledger
from tilert_stream.pipeline import Pipeline
from tilert_stream.scope import RequestScope
from tilert_stream.testing import make_request

REQUEST = make_request()
LENGTH = Finished("length")


class Check:
    async def call(self, item: GenerateRequest, scope: RequestScope) -> GenerateRequest:
        return item


class Emit:
    """Ten tokens, then the end."""

    async def produce(self, item: GenerateRequest, scope: RequestScope) -> TokenBatch | None:
        for number in range(10):
            scope.mailbox.put(TokenBatch((number,)))
        scope.mailbox.put(LENGTH)
        return None


class Spell:
    """A number a token; made per request."""

    def __init__(self, _scope: RequestScope) -> None:
        self.count = 0

    def feed(self, item: TokenBatch) -> Iterable[str | Finished]:
        for number in item.ids:
            self.count += 1
            yield str(number)

    def finish(self, outcome: Finished) -> Iterable[str | Finished]:
        yield f"[{self.count}, {outcome.reason}]"


class Join:
    """Holds everything back to the end."""

    def __init__(self, _scope: RequestScope) -> None:
        self.parts: list[str] = []

    def feed(self, item: str) -> Iterable[str]:
        self.parts.append(item)
        return ()

    def finish(self, _outcome: Finished) -> Iterable[str]:
        yield "".join(self.parts)


class Loud:
    async def run(self, receive: Receive[str], send: Send[str]) -> None:
        async for item in receive:
            await send(item.upper())


BASE = Pipeline().then(Check()).then(Emit())


async def answer(pipeline: Pipeline[Any]) -> tuple[list[Any], Finished]:
    """Everything that came out, and the end; the ledger is empty afterwards."""
    ledger = Ledger()
    items: list[Any] = []
    async with pipeline.open(REQUEST, ledger=ledger) as stream:
        async for some in stream:
            assert some, "an iteration yields something"
            items += some
        assert stream.outcome is not None
    assert ledger.counts == {}
    return items, stream.outcome
