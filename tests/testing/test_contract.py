from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace

import pytest

from tilert_stream.abc import Receive, Send
from tilert_stream.events import Finished, GenerateRequest, TextDelta, TokenBatch
from tilert_stream.scope import RequestScope
from tilert_stream.stages.stop import StopStrings
from tilert_stream.testing import assert_contract, make_request


class Pass:
    """Keeps the contract; the others here break one rule of it."""

    def __init__(self, _scope: RequestScope | None = None) -> None: ...

    def feed(self, item: TextDelta) -> Iterable[TextDelta | Finished]:
        yield item

    def finish(self, _outcome: Finished) -> Iterable[TextDelta | Finished]:
        return ()


class HoldBack(Pass):
    """Everything comes at the end: allowed."""

    def __init__(self, _scope: RequestScope) -> None:
        self.held: list[TextDelta] = []

    def feed(self, item: TextDelta) -> Iterable[TextDelta]:
        self.held.append(item)
        return ()

    def finish(self, _outcome: Finished) -> Iterable[TextDelta]:
        return self.held


class CutsAtItems(Pass):
    def feed(self, item: TextDelta) -> Iterable[TextDelta]:
        yield replace(item, text=item.text + "|")


class Counts(Pass):
    """One state for all requests."""

    seen = 0

    def feed(self, item: TextDelta) -> Iterable[TextDelta]:
        Counts.seen += 1
        yield TextDelta(str(Counts.seen))


class LeavesBehind(Pass):
    """Clears up at the end only: a request that is given up spoils the next."""

    held: list[str] = []  # noqa: RUF012 - shared on purpose

    def feed(self, item: TextDelta) -> Iterable[TextDelta]:
        self.held.append(item.text)
        return ()

    def finish(self, _outcome: Finished) -> Iterable[TextDelta]:
        text = "".join(self.held)
        self.held.clear()
        yield TextDelta(text)


class HidesFailure(Pass):
    def finish(self, outcome: Finished) -> Iterable[Finished]:
        if outcome.reason == "error":
            yield Finished("stop")


class Sleeps(Pass):
    def feed(self, item: TextDelta) -> Iterable[TextDelta]:
        time.sleep(0)
        yield item


class PassAwaiting:
    async def run(self, receive: Receive[TextDelta], send: Send[TextDelta]) -> None:
        async for item in receive:
            await send(item)


class CutsAwaiting:
    async def run(self, receive: Receive[TextDelta], send: Send[TextDelta]) -> None:
        async for item in receive:
            await send(replace(item, text=item.text + "|"))


class HidesAwaiting:
    async def run(self, receive: Receive[TextDelta], send: Send[TextDelta | Finished]) -> None:
        async for item in receive:
            await send(item)
        if receive.outcome != Finished("length"):
            await send(Finished("stop"))


class KnowsItsLoop:
    """Says on which backend it runs."""

    async def run(self, receive: Receive[TextDelta], send: Send[TextDelta]) -> None:
        import sniffio

        async for _ in receive:
            pass
        await send(TextDelta(sniffio.current_async_library()))


class TakesTokens:
    def __init__(self, _scope: RequestScope) -> None: ...

    def feed(self, item: TokenBatch) -> Iterable[TokenBatch]:
        yield item

    def finish(self, _outcome: Finished) -> Iterable[TokenBatch]:
        return ()


class Untyped:
    def __init__(self, _scope: RequestScope) -> None: ...

    def feed(self, item: str) -> Iterable[str]:
        yield item.upper()

    def finish(self, _outcome: Finished) -> Iterable[str]:
        return ()


class Step:
    async def call(self, item: GenerateRequest, scope: RequestScope) -> GenerateRequest:
        return item


@pytest.mark.parametrize(
    "stage", [Pass, Pass(), HoldBack, PassAwaiting(), TakesTokens, StopStrings(), "stop_strings"]
)
def test_good_stages_pass(stage: object) -> None:
    assert_contract(stage)


def test_a_request_of_its_own() -> None:
    assert_contract(StopStrings(), request=make_request(stop=("lo w", "world")))


@pytest.mark.parametrize(
    ("stage", "rule"),
    [
        (CutsAtItems, "cuts_at_items: the output depends on how the input is cut"),
        (Counts, "counts: the same input gave another output: a state is shared"),
        (LeavesBehind, "leaves_behind: a request that was given up after 1 items changed"),
        (HidesFailure, "hides_failure: a failed request came out as"),
        (Sleeps, r"sleeps: time\.sleep on the event loop; make it a Stage and await"),
        (CutsAwaiting(), "cuts_awaiting: the output depends on how the input is cut"),
        (HidesAwaiting(), "hides_awaiting: a failed request came out as"),
        (KnowsItsLoop(), "knows_its_loop: asyncio gave .*, trio "),
    ],
)
def test_a_broken_rule_is_named(stage: object, rule: str) -> None:
    with pytest.raises(AssertionError, match=rule):
        assert_contract(stage)


def test_inputs_and_join_of_ones_own() -> None:
    assert_contract(Untyped, inputs=["a", "b", "c"])
    with pytest.raises(AssertionError, match="depends on how the input is cut"):
        assert_contract(Pass, join=len)
    with pytest.raises(TypeError, match=r"untyped takes str: give inputs"):
        assert_contract(Untyped)


def test_steps_are_not_checked_here() -> None:
    with pytest.raises(TypeError, match="step is a step; transforms and stages are checked here"):
        assert_contract(Step())


class ForgetsEnds:
    def __init__(self, _scope: RequestScope) -> None:
        """Keep no state."""

    def feed(self, item: TextDelta) -> Iterable[TextDelta]:
        yield TextDelta(item.text, item.ids)

    def finish(self, _outcome: Finished) -> Iterable[TextDelta]:
        return ()


class LosesTheEnd:
    def __init__(self, _scope: RequestScope) -> None:
        self._held: list[TextDelta] = []

    def feed(self, item: TextDelta) -> Iterable[TextDelta]:
        self._held.append(item)
        return ()

    def finish(self, _outcome: Finished) -> Iterable[TextDelta]:
        yield TextDelta("".join(delta.text for delta in self._held))


def test_a_stage_that_forgets_where_its_tokens_end_is_found() -> None:
    with pytest.raises(AssertionError, match="one end for each of its ids"):
        assert_contract(ForgetsEnds)


def test_a_stage_that_loses_tokens_is_found() -> None:
    with pytest.raises(AssertionError, match=r"of the tokens .* only"):
        assert_contract(LosesTheEnd)
