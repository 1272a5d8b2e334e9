"""``assert_contract`` passes what keeps the contract, and names the rule that a stage breaks."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from anyio.lowlevel import checkpoint

from tilert_stream.abc import Receive, Send
from tilert_stream.events import Finished, GenerateRequest, TextDelta, TokenBatch
from tilert_stream.stages.stop import StopStrings
from tilert_stream.testing import assert_contract, make_request

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tilert_stream.scope import RequestScope


class Upper:
    """Keeps the contract and no state."""

    def feed(self, item: TextDelta) -> Iterable[TextDelta | Finished]:
        return (TextDelta(item.text.upper(), item.ids, item.ends),)

    def finish(self, _outcome: Finished) -> Iterable[TextDelta | Finished]:
        return ()


class HoldAll(Upper):
    """Keeps the contract: holds everything, and gives it back at the end."""

    def __init__(self, _scope: RequestScope) -> None:
        self.held: list[TextDelta] = []

    def feed(self, item: TextDelta) -> Iterable[TextDelta | Finished]:
        self.held.append(item)
        return ()

    def finish(self, _outcome: Finished) -> Iterable[TextDelta | Finished]:
        return self.held


class HoldLast(HoldAll):
    """Holds one item and never gives it back."""

    def feed(self, item: TextDelta) -> Iterable[TextDelta | Finished]:
        self.held.append(item)
        return [self.held.pop(0)] if len(self.held) > 1 else []

    def finish(self, _outcome: Finished) -> Iterable[TextDelta | Finished]:
        return ()


class CountItems(Upper):
    """Its output depends on how the text came."""

    def feed(self, item: TextDelta) -> Iterable[TextDelta | Finished]:
        return (TextDelta(item.text + "|", item.ids, item.ends),)


class Remember(Upper):
    """Serves every request with one memory."""

    def __init__(self) -> None:
        self.seen = 0

    def feed(self, item: TextDelta) -> Iterable[TextDelta | Finished]:
        self.seen += len(item.text)
        return (TextDelta(f"{self.seen} {item.text}"),)


class Whitewash(Upper):
    """Makes a success of every failure."""

    def finish(self, _outcome: Finished) -> Iterable[TextDelta | Finished]:
        return (Finished("length"),)


class GoOn(Upper):
    """Says that it is over, and goes on."""

    def feed(self, item: TextDelta) -> Iterable[TextDelta | Finished]:
        return (item, Finished("stop"), item)


class Sleep(Upper):
    def feed(self, item: TextDelta) -> Iterable[TextDelta | Finished]:
        time.sleep(0)
        return (item,)


class LookUp(Upper):
    def feed(self, item: TextDelta) -> Iterable[TextDelta | Finished]:
        socket.getaddrinfo("127.0.0.1", 80, flags=socket.AI_NUMERICHOST)
        return (item,)


class Spawn(Upper):
    def finish(self, _outcome: Finished) -> Iterable[TextDelta | Finished]:
        subprocess.run([sys.executable, "--version"], check=True, capture_output=True)
        return ()


class Pass:
    """Keeps the contract."""

    async def run(self, receive: Receive[TextDelta], send: Send[TextDelta]) -> None:
        async for item in receive:
            await checkpoint()
            await send(item)


class HoldAllAwaiting(Pass):
    async def run(self, receive: Receive[TextDelta], send: Send[TextDelta]) -> None:
        for item in [item async for item in receive]:
            await send(item)


class DropLast(Pass):
    async def run(self, receive: Receive[TextDelta], send: Send[TextDelta]) -> None:
        last: TextDelta | None = None
        async for item in receive:
            if last is not None:
                await send(last)
            last = item


class SendOn(Pass):
    async def run(self, receive: Receive[TextDelta], send: Send[TextDelta]) -> None:
        async for item in receive:
            await send(Finished("stop"))
            await send(item)


class WhitewashAwaiting(Pass):
    async def run(self, receive: Receive[TextDelta], send: Send[TextDelta]) -> None:
        async for item in receive:
            await send(item)
        await send(Finished("length"))


class LookUpAwaiting(Pass):
    async def run(self, receive: Receive[TextDelta], send: Send[TextDelta]) -> None:
        async for item in receive:
            socket.getaddrinfo("127.0.0.1", 80, flags=socket.AI_NUMERICHOST)
            await send(item)


class Stepping:
    async def call(self, item: GenerateRequest, scope: RequestScope) -> GenerateRequest:
        raise NotImplementedError


class Odd:
    """Takes items that only it knows."""

    def feed(self, item: complex) -> Iterable[complex | Finished]:
        return (item,)

    def finish(self, _outcome: Finished) -> Iterable[complex | Finished]:
        return ()


class Merge:
    """Tokens in, tokens out, in other batches."""

    def __init__(self, _scope: RequestScope) -> None:
        self.ids: tuple[int, ...] = ()

    def feed(self, item: TokenBatch) -> Iterable[TokenBatch | Finished]:
        self.ids += item.ids
        return ()

    def finish(self, _outcome: Finished) -> Iterable[TokenBatch | Finished]:
        return (TokenBatch(self.ids),)


@pytest.mark.parametrize("stage", [Upper(), HoldAll, StopStrings(), "stop_strings", Merge])
def test_a_transform_that_keeps_the_contract_passes(stage: object) -> None:
    assert_contract(stage)


@pytest.mark.parametrize("stage", [Pass(), HoldAllAwaiting()])
def test_a_stage_that_keeps_the_contract_passes(stage: object) -> None:
    assert_contract(stage)


def test_a_request_of_ones_own_reaches_the_stage() -> None:
    assert_contract(StopStrings(), request=make_request(stop=("wör",)))


@pytest.mark.parametrize(
    ("stage", "rule"),
    [
        (HoldLast, "depends on how the input is cut"),
        (CountItems(), "depends on how the input is cut"),
        (Remember(), "a state is shared between requests"),
        (Whitewash(), "a failed request came out as"),
        (GoOn(), "something came after Finished"),
        (Sleep(), r"time\.sleep on the event loop"),
        (LookUp(), r"socket\.getaddrinfo on the event loop"),
        (Spawn(), r"subprocess\.Popen on the event loop"),
        (DropLast(), "depends on how the input is cut"),
        (SendOn(), "something came after Finished"),
        (WhitewashAwaiting(), "a failed request came out as"),
        (LookUpAwaiting(), r"socket\.getaddrinfo on the event loop"),
    ],
)
def test_a_stage_that_breaks_a_rule_is_told_which(stage: object, rule: str) -> None:
    with pytest.raises(AssertionError, match=rule):
        assert_contract(stage)


def test_a_step_is_not_checked_here() -> None:
    with pytest.raises(TypeError, match="stepping is a step; transforms and stages are checked"):
        assert_contract(Stepping())


def test_items_that_only_the_stage_knows_must_be_given() -> None:
    with pytest.raises(TypeError, match=r"odd takes complex: give inputs=\[...\]"):
        assert_contract(Odd())
    assert_contract(Odd(), inputs=[1j, 2j])
