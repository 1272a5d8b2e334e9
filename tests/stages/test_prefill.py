"""The first token, on its way before the KV cache is imported."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Iterable
from contextlib import contextmanager, suppress
from typing import cast

import pytest

from tests.small_stages import LENGTH, REQUEST, Emit
from tilert_stream.events import (
    Finished,
    GenerateRequest,
    Prefilled,
    PromptUsage,
    Reserved,
    TokenBatch,
)
from tilert_stream.opened import Opened
from tilert_stream.pipeline import Pipeline
from tilert_stream.scope import RequestScope
from tilert_stream.service import Service
from tilert_stream.stages.prefill import Prefill

FIRST = TokenBatch((7,))
ASYNCIO = [
    pytest.param(("asyncio", {"use_uvloop": False}), id="asyncio"),
    pytest.param(("asyncio", {"use_uvloop": True}), id="uvloop"),
]


class Known:
    """A prefill node that has the answer at once."""

    async def prefill(self, reserved: Reserved, scope: RequestScope) -> Prefilled:
        return Prefilled(reserved, FIRST, None, PromptUsage(3))


@contextmanager
def running() -> Generator[RequestScope]:
    """The scope of a request whose mailbox is in the event loop."""
    stream = Pipeline().then(Emit()).stream(REQUEST)
    try:
        yield stream.scope
    finally:
        stream.close()


def awaits(step: Coroutine[object, object, object]) -> bool:
    """Whether ``step`` takes a turn of the loop."""
    try:
        step.send(None)
    except StopIteration:
        return False
    step.close()
    return True


async def test_a_first_token_that_has_been_written_takes_no_turn_of_the_loop() -> None:
    written: list[TokenBatch | Finished] = []
    with running() as scope:
        mailbox = scope.mailbox

        def forward(_: object) -> None:
            written.extend(mailbox.drain())
            mailbox.call_when_ready(forward, None)

        forward(None)
        assert not awaits(Prefill(Known()).call(Reserved(0), scope))
        assert written == [FIRST]
        mailbox.call_off()


async def test_a_first_token_that_waits_to_be_written_goes_before_the_import() -> None:
    with running() as scope:
        assert awaits(Prefill(Known()).call(Reserved(0), scope))
        assert scope.mailbox.drain() == [FIRST]


async def test_a_mailbox_is_awaited_while_its_reader_has_all_and_wants_more() -> None:
    with running() as scope:
        mailbox = scope.mailbox
        assert not mailbox.awaited
        mailbox.call_when_ready(lambda _: None, None)
        assert mailbox.awaited
        mailbox.put(FIRST)
        assert not mailbox.awaited, "it was told, and has not asked again"
        mailbox.call_when_ready(lambda _: None, None)
        assert not mailbox.awaited, "there is something"
        mailbox.call_off()


class Slot:
    async def call(self, item: GenerateRequest, scope: RequestScope) -> Reserved:
        return Reserved(0)


class Import:
    """A source that says whether it was begun."""

    def __init__(self) -> None:
        self.begun = False

    async def produce(self, item: Prefilled, scope: RequestScope) -> TokenBatch | None:
        self.begun = True
        scope.mailbox.put(LENGTH)
        return None


class Through:
    """Says each token."""

    def __init__(self, _scope: RequestScope) -> None: ...

    def feed(self, item: TokenBatch) -> Iterable[str | Finished]:
        yield str(item.ids[0])

    def finish(self, _outcome: Finished) -> Iterable[str | Finished]:
        return ()


class StopAtOnce(Through):
    """Ends with the first token, as a stop string may."""

    def feed(self, item: TokenBatch) -> Iterable[str | Finished]:
        yield str(item.ids[0])
        yield Finished("stop", "7")


def take(_items: list[str]) -> bool:
    return True


def leave(_items: list[str]) -> bool:
    raise ConnectionError("the client has left")


async def imported(encode: type[Through], sink: Callable[[list[str]], bool]) -> bool:
    """Whether the import of a forwarded answer was begun."""
    source = Import()
    pipeline = Pipeline().then(Slot()).then(Prefill(Known())).then(source)
    service: Service[TokenBatch] = Service(pipeline)
    async with service:
        opened = service.open(REQUEST, encode)
        assert isinstance(opened, Opened)
        opened.forwarded = True
        async with cast("Opened[str]", opened) as stream:
            with suppress(ConnectionError):
                await stream.forward(sink)
    assert not service.ledger.counts
    return source.begun


async def test_behind_a_first_token_the_kv_cache_is_imported() -> None:
    assert await imported(Through, take)


async def test_nothing_is_imported_for_an_answer_that_ends_with_its_first_token() -> None:
    assert not await imported(StopAtOnce, take)


@pytest.mark.parametrize("anyio_backend", ASYNCIO)  # trio takes what is ready in any order
async def test_nothing_is_imported_for_a_client_that_leaves_with_its_first_token() -> None:
    assert not await imported(Through, leave)
