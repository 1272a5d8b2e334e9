"""What a check has in hand: requests to this server, counted and bounded."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import anyio
import orjson

from .answer import Answer, error_of
from .exchange import Ending, Request
from .json_view import at, items, parsed, text_at
from .judging import Failed, require, skip
from .wire import dial, play

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from .exchange import Exchange, Leave
    from .settings import Settings
    from .target import Target
    from .wire import Wire

__all__ = ("CHAT", "COMPLETIONS", "PROMPT", "Facts", "Session")

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
PROMPT: Final = "Count from one to twenty in words, with commas."
_ABSENT: Final = (404, 405, 501)


@dataclass(slots=True)
class Facts:
    """What is found out once a run."""

    model: str | None = None
    missing: dict[str, str] = field(default_factory=dict[str, str])
    """Why ``chat`` or ``completions`` cannot be asked here."""
    reference: Answer | None = None
    """A greedy answer that came out the same twice."""
    unstable: str = ""
    """Why there is no reference."""

    @property
    def path(self) -> str:
        """Where questions go that either endpoint could answer."""
        return COMPLETIONS if "chat" in self.missing else CHAT


class Session:
    """One check's dealings with the server."""

    def __init__(self, target: Target, settings: Settings, facts: Facts) -> None:
        self.target = target
        self.settings = settings
        self.facts = facts
        self.requests = 0
        self.last: Exchange | None = None

    async def send(self, request: Request, leave: Leave | None = None) -> Exchange:
        """Play a request on a connection of its own."""
        self._count()
        self.last = await play(self.target, self.settings, request, leave)
        return self.last

    @asynccontextmanager
    async def connection(self) -> AsyncGenerator[Wire]:
        """A connection for more than one request, all of them within the time limit of one.

        :raises TimeoutError: they were not complete.
        """
        self._count()
        with anyio.fail_after(self.settings.timeout):
            async with dial(self.target, self.settings) as wire:
                yield wire

    def fields(self, prompt: object = PROMPT, path: str | None = None, /, **given: object) -> bytes:
        """The body of a question, greedy and short unless ``given`` says otherwise."""
        chat = (path or self.facts.path) == CHAT
        asked = {"messages": [{"role": "user", "content": prompt}]} if chat else {"prompt": prompt}
        model = {} if self.facts.model is None else {"model": self.facts.model}
        return orjson.dumps(model | asked | {"max_tokens": 16, "temperature": 0} | given)

    def question(
        self, prompt: object = PROMPT, path: str | None = None, /, **given: object
    ) -> Request:
        """A request for an answer."""
        path = path or self.facts.path
        return Request(path=path, body=self.fields(prompt, path, **given))

    async def post(self, body: bytes, path: str | None = None) -> Exchange:
        """Send ``body`` as it is."""
        return await self.send(Request(path=path or self.facts.path, body=body))

    async def get(self, path: str) -> Exchange:
        """Ask for a path."""
        return await self.send(Request(path=path, method="GET"))

    async def ask(
        self, prompt: object = PROMPT, path: str | None = None, /, **given: object
    ) -> Answer:
        """Ask, and have a complete answer.

        :raises ~tilert_stream.conformance.judging.Failed: there is none.
        """
        return self.read(await self.send(self.question(prompt, path, **given)))

    async def ask_or_refusal(
        self, named: str, prompt: object = PROMPT, path: str | None = None, /, **given: object
    ) -> Answer | None:
        """Ask for what a server may refuse; None where it does so, with a 4xx that names the field.

        :param named: the field.
        """
        exchange = await self.send(self.question(prompt, path, **given))
        if 400 <= exchange.status < 500 or exchange.status == 501:
            error = error_of(exchange)
            words = f"{text_at(error, 'param')} {text_at(error, 'message')}"
            require(named in words, f"refused, but the error does not name {named}", exchange)
            return None
        return self.read(exchange)

    def read(self, exchange: Exchange) -> Answer:
        """The answer in an exchange.

        :raises ~tilert_stream.conformance.judging.Failed: there is none.
        """
        require(exchange.status == 200, f"status {exchange.status}; it must be 200", exchange)
        require(exchange.ending is Ending.COMPLETE, f"the answer was {exchange.ending}", exchange)
        streamed = at(parsed(exchange.request.body), "stream") is True
        return Answer.of(exchange, streamed=streamed)

    async def reference(self) -> Answer:
        """A greedy answer of some length, to compare others with; the same one in every check."""
        facts = self.facts
        if facts.reference is None and not facts.unstable:
            first = await self.ask(max_tokens=48, seed=1)
            again = await self.ask(max_tokens=48, seed=1)
            if first.text != again.text:
                facts.unstable = "greedy answers differ from each other, so none can be foretold"
            elif len(first.text) < 16:
                facts.unstable = f"the greedy answer is too short to be cut: {first.text!r}"
            else:
                facts.reference = first
        if facts.reference is None:
            skip(facts.unstable)
        return facts.reference

    async def discover(self) -> None:
        """Find the model's name, unless it is given, and which endpoints answer."""
        if self.facts.model is None:
            found = [
                text_at(m, "id") for m in items(parsed((await self.get("/v1/models")).body), "data")
            ]
            self.facts.model = next((name for name in found if name), None)
        for name, path in (("chat", CHAT), ("completions", COMPLETIONS)):
            exchange = await self.send(self.question("Hi", path, max_tokens=1))
            if exchange.status != 200:
                self.facts.missing[name] = _lacking(name, exchange)

    def _count(self) -> None:
        self.requests += 1
        if self.requests > self.settings.requests:
            raise Failed(f"the check wanted more than {self.settings.requests} requests")


def _lacking(name: str, exchange: Exchange) -> str:
    if not exchange.status:
        return f"{name} does not answer: {exchange.ending} {exchange.fault}".rstrip()
    message = text_at(error_of(exchange), "message") or exchange.body[:120].decode(errors="replace")
    absent = exchange.status in _ABSENT or "template" in message
    return f"{name} {'is not served' if absent else 'fails'}: {exchange.status} {message}".rstrip()
