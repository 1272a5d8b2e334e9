"""What has run out, by numbers; who tells the request, by the clock; and what it gives back."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import ExitStack, aclosing, asynccontextmanager, contextmanager
from math import inf
from typing import Any

import anyio
import pytest
import trio
import trio.testing
from anyio.lowlevel import checkpoint

from tests.small_stages import BASE, LENGTH, REQUEST, Check, Spell
from tests.switched_limits import NO_LIMITS, SwitchedLimits
from tilert_stream.abc import Receive, Send
from tilert_stream.errors import (
    FirstTokenTimeout,
    InterTokenTimeout,
    KVTimeout,
    PrefillTimeout,
    TilertStreamError,
    Timeout,
    TotalTimeout,
)
from tilert_stream.events import Finished, GenerateRequest, TokenBatch
from tilert_stream.lifecycle import Lifecycle, State
from tilert_stream.mailbox import Mailbox
from tilert_stream.pipeline import Pipeline
from tilert_stream.scope import RequestScope
from tilert_stream.service import Service
from tilert_stream.testing import make_scope
from tilert_stream.time_limits import TimeLimits
from tilert_stream.watchdog import Watchdog


@contextmanager
def live_scope() -> Generator[RequestScope]:
    with make_scope() as made:
        made.mailbox = Mailbox()
        yield made


@pytest.fixture
async def scope() -> AsyncGenerator[RequestScope]:
    with live_scope() as made:
        yield made


LIMITS = TimeLimits(prefill=10, kv=20, first_token=30, inter_token=40, total=1000)


def test_every_limit_has_a_sensible_default() -> None:
    assert TimeLimits().shortest == 120
    assert TimeLimits().total == inf


@pytest.mark.parametrize("name", NO_LIMITS)
@pytest.mark.parametrize("value", [0, -1, float("nan")])
def test_a_limit_is_above_zero(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"the time limit {name} is {value}"):
        TimeLimits(**(NO_LIMITS | {name: value}))


@pytest.mark.parametrize(
    ("states", "error", "since"),
    [
        ([State.QUEUED], TotalTimeout, State.QUEUED),
        ([State.RESERVED], FirstTokenTimeout, State.RESERVED),
        ([State.RESERVED, State.PREFILLING], PrefillTimeout, State.PREFILLING),
        ([State.RESERVED, State.IMPORTING_KV], KVTimeout, State.IMPORTING_KV),
        ([State.RESERVED, State.DECODING], FirstTokenTimeout, State.RESERVED),
    ],
)
async def test_each_state_has_its_limit(
    scope: RequestScope, states: list[State], error: type[Timeout], since: State
) -> None:
    for state in states:
        if state is not State.QUEUED:
            scope.lifecycle.move(state)
    seconds: dict[type[Timeout], int] = {
        TotalTimeout: 1000,
        FirstTokenTimeout: 30,
        PrefillTimeout: 10,
        KVTimeout: 20,
    }
    limit = seconds[error]
    due = scope.lifecycle.entered[since] + limit
    assert LIMITS.examine(scope, due - 1) == due, "nothing yet, and when it will be"
    found = LIMITS.examine(scope, due + 0.001)
    assert isinstance(found, Timeout)
    assert type(found) is error
    assert (found.status, found.retryable, found.param) == (504, True, None)
    assert f"within {limit} s" in found.message
    assert f"{found.code.removesuffix('_timeout')}_timeout" in found.message


async def test_tokens_alone_move_the_inter_token_limit(scope: RequestScope) -> None:
    scope.lifecycle.move(State.RESERVED)
    scope.mailbox.put(TokenBatch((1,)))
    scope.lifecycle.move(State.DECODING)
    begun = scope.lifecycle.entered[State.DECODING]
    assert LIMITS.examine(scope, begun) == begun + 40, "the import had its own limit"
    scope.mailbox.put(TokenBatch((2,)))
    last = scope.mailbox.statistics().last_put
    assert last > begun
    scope.mailbox.put()
    assert LIMITS.examine(scope, begun) == last + 40, "putting nothing is no token"
    assert type(LIMITS.examine(scope, last + 40)) is InterTokenTimeout
    scope.mailbox.put(LENGTH)
    assert LIMITS.examine(scope, last + 40) == scope.lifecycle.entered[State.QUEUED] + 1000


# --- the watchdog, by a clock that jumps -------------------------------------------------------

jumping = pytest.mark.parametrize(
    "anyio_backend",
    [pytest.param(("trio", {"clock": trio.testing.MockClock(autojump_threshold=0)}), id="trio")],
)


class Request:
    """A request whose states are noted by the jumping clock."""

    def __init__(self, scope: RequestScope) -> None:
        self.scope = scope
        self.scope.lifecycle = Lifecycle(clock=anyio.current_time)
        self.errors: list[tuple[str, float]] = []

    def fail(self, error: Timeout) -> None:
        self.errors.append((error.code, anyio.current_time()))
        self.scope.mailbox.put(Finished.failed(error))


@asynccontextmanager
async def watching(limits: TimeLimits) -> AsyncGenerator[tuple[Watchdog, list[float]]]:
    """A watchdog, and the times at which it looked."""
    looks: list[float] = []

    def clock() -> float:
        looks.append(anyio.current_time())
        return anyio.current_time()

    watchdog = Watchdog(limits, clock=clock)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watchdog.run)
        yield watchdog, looks
        tasks.cancel_scope.cancel()


@jumping
async def test_a_limit_that_begins_between_two_looks_is_kept_to_the_moment(
    scope: RequestScope,
) -> None:
    async with watching(LIMITS) as (watchdog, _):
        start = anyio.current_time()
        request = Request(scope)
        watchdog.add(request)
        await anyio.sleep(9)
        request.scope.lifecycle.move(State.RESERVED)
        await anyio.sleep(4)
        request.scope.lifecycle.move(State.PREFILLING)
        await anyio.sleep(100)
    ((code, when),) = request.errors
    assert code == "prefill_timeout"
    assert when - start == pytest.approx(9 + 4 + 10)


@jumping
async def test_a_thousand_requests_cost_one_timer_and_none_when_they_are_gone() -> None:
    limits = TimeLimits(**(NO_LIMITS | {"first_token": 50}))
    with ExitStack() as scopes:
        requests = [Request(scopes.enter_context(live_scope())) for _ in range(1000)]
        await _watch_over(requests, limits)


async def _watch_over(requests: list[Request], limits: TimeLimits) -> None:
    async with watching(limits) as (watchdog, looks):
        for request in requests:
            watchdog.add(request)
            request.scope.lifecycle.move(State.RESERVED)
        await anyio.sleep(49)
        assert len(looks) <= 2
        for request in requests[1:]:
            watchdog.discard(request)
        await anyio.sleep(2)
        watchdog.discard(requests[0])
        await anyio.sleep(1000)
        seen = len(looks)
        assert seen <= 10
        await anyio.sleep(10_000)
        assert len(looks) == seen, "nothing lives, and nothing wakes"
    assert [code for code, _ in requests[0].errors] == ["first_token_timeout"]
    assert not any(request.errors for request in requests[1:])


@jumping
async def test_without_limits_nothing_ever_wakes(scope: RequestScope) -> None:
    async with watching(TimeLimits(**NO_LIMITS)) as (watchdog, looks):
        watchdog.add(Request(scope))
        await anyio.sleep(10_000)
        assert len(looks) <= 2


# --- in a service ------------------------------------------------------------------------------


class Stuck:
    """A step or a source that holds something and never comes to an end.

    :param stuck: called when it stands there.
    """

    def __init__(
        self, state: State, *, tokens: int = 0, stuck: Callable[[], None] = lambda: None
    ) -> None:
        self.state, self.tokens, self._stuck = state, tokens, stuck
        self.released: list[str] = []

    def enter(self, scope: RequestScope) -> None:
        scope.lifecycle.move(State.RESERVED)
        if self.tokens:
            scope.mailbox.put(*(TokenBatch((number,)) for number in range(self.tokens)))
        if self.state is not State.RESERVED:
            scope.lifecycle.move(self.state)
        scope.lease.hold("it", self.released.append)
        self._stuck()


class StuckStep(Stuck):
    async def call(self, item: GenerateRequest, scope: RequestScope) -> GenerateRequest:
        self.enter(scope)
        await anyio.sleep_forever()
        return item


class StuckSource(Stuck):
    async def produce(self, item: GenerateRequest, scope: RequestScope) -> TokenBatch | None:
        self.enter(scope)
        await anyio.sleep_forever()
        return None


class StuckStage:
    """Passes what comes on, and then nothing, not even the end.

    :param stuck: called when all has come.
    """

    def __init__(self, stuck: Callable[[], None]) -> None:
        self._stuck = stuck

    async def run(self, receive: Receive[str], send: Send[str]) -> None:
        async for item in receive:
            await send(item)
        self._stuck()
        await anyio.sleep_forever()


class Quiet:
    async def run(self, receive: Receive[str], send: Send[str]) -> None:
        async for item in receive:
            await send(item)


async def read(service: Service[str]) -> tuple[list[str], TilertStreamError]:
    items: list[str] = []
    try:
        async with service, aclosing(service.stream(REQUEST)) as answer:
            with anyio.fail_after(60):
                async for item in answer:
                    items.append(item)  # noqa: PERF401 - what came before the error counts
    except Timeout as error:
        assert service.ledger.counts == {}
        return items, error
    raise AssertionError(f"it came to an end: {items}")


@pytest.mark.parametrize("staged", [False, True], ids=["fused", "staged"])
@pytest.mark.parametrize(
    ("state", "tokens", "limit"),
    [
        (State.RESERVED, 0, "first_token"),
        (State.RESERVED, 0, "total"),
        (State.PREFILLING, 0, "prefill"),
        (State.IMPORTING_KV, 1, "kv"),
        (State.DECODING, 1, "inter_token"),
        (State.DECODING, 3, "total"),
    ],
)
@pytest.mark.parametrize("make", [StuckStep, StuckSource])
async def test_a_stuck_part_ends_with_its_own_error_and_gives_all_back(
    make: Callable[..., Any], state: State, tokens: int, limit: str, staged: bool
) -> None:
    limits = SwitchedLimits(**{limit: 0.02})
    stuck = make(state, tokens=tokens, stuck=limits.count)
    pipeline: Any = Pipeline().then(stuck) if make is StuckSource else BASE
    if make is StuckStep:
        pipeline = Pipeline().then(stuck).then(StuckSource(State.DECODING))
    pipeline = pipeline.then(Spell)
    if staged:
        pipeline = pipeline.then(Quiet())
    service = Service[str](pipeline, time_limits=limits)
    items, error = await read(service)
    assert error.code == f"{limit}_timeout"
    assert stuck.released == ["error"]
    said = [str(number) for number in range(tokens)]
    assert items == [*said, f"[{tokens}, error]"], "nothing is lost, and the end is told"


async def test_a_stage_that_keeps_the_end_is_cut_by_the_total_limit() -> None:
    limits = SwitchedLimits(total=0.02)
    pipeline: Any = BASE.then(Spell).then(StuckStage(limits.count))
    service = Service[str](pipeline, time_limits=limits)
    items, error = await read(service)
    assert type(error) is TotalTimeout
    assert items == [*map(str, range(10)), "[10, length]"]


class Drip:
    """Tokens one after another, for ever."""

    async def produce(self, item: GenerateRequest, scope: RequestScope) -> TokenBatch | None:
        while scope.mailbox.put(TokenBatch((7,))):
            await checkpoint()
        return None


class Deaf:
    """A stage that takes nothing."""

    async def run(self, receive: Receive[str], send: Send[str]) -> None:
        await anyio.sleep_forever()


async def test_a_stage_that_takes_nothing_is_cut_after_its_source_has_ended() -> None:
    pipeline: Any = Pipeline().then(Check()).then(Drip()).then(Spell).then(Deaf())
    service = Service[str](pipeline, time_limits=TimeLimits(**(NO_LIMITS | {"total": 0.02})))
    items, error = await read(service)
    assert (items, type(error)) == ([], TotalTimeout)


@pytest.mark.parametrize("linked", [Spell, None], ids=["with transforms", "without"])
async def test_a_complete_answer_stays_complete_however_slow_its_reader(linked: Any) -> None:
    pipeline: Any = BASE.then(linked) if linked else BASE
    stream = pipeline.stream(REQUEST)
    items: list[object] = []
    async with anyio.create_task_group() as tasks:
        stream.start(tasks)
        while not stream.scope.mailbox.statistics().finished:
            await checkpoint()
        stream.fail(TotalTimeout("late"))
        async for some in stream:
            items += some
        stream.close()
    assert stream.outcome == LENGTH
    assert len(items) >= 10


async def test_the_limits_of_an_entered_service_count_again_after_it_was_left() -> None:
    stuck = StuckStep(State.PREFILLING)
    pipeline: Any = Pipeline().then(Check()).then(stuck).then(StuckSource(State.DECODING))
    service = Service[str](
        pipeline.then(Spell), time_limits=TimeLimits(**(NO_LIMITS | {"prefill": 0.02}))
    )
    for _ in range(2):
        _, error = await read(service)
        assert type(error) is PrefillTimeout
    assert stuck.released == ["error", "error"]
