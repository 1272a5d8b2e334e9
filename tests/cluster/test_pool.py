"""Whom a pool asks next, and what it says when nobody can."""

from __future__ import annotations

import logging
import random

import anyio
import pytest

from tilert_stream.cluster.errors import DecodeFailed, LayoutMismatch, NodeFailed, NodeRefused
from tilert_stream.cluster.pool import Member, NodeStatus, Pool, Visit
from tilert_stream.errors import (
    Busy,
    ConfigError,
    InvalidRequest,
    NotReady,
    TilertStreamError,
)
from tilert_stream.http.client import (
    ConnectFailed,
    UpstreamClosed,
    UpstreamError,
    UpstreamInvalid,
    UpstreamTimeout,
)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Nodes:
    """A pool of ``a``, ``b``, ``c``, each with the errors that it answers with."""

    def __init__(self, **errors: TilertStreamError | None) -> None:
        self.errors = {name: errors.get(name) for name in "abc"}
        self.clock = Clock()
        self.pool = Pool("decode", [(name, name) for name in "abc"], clock=self.clock)
        self.asked: list[str] = []

    async def attempt(self, member: Member[str]) -> str:
        await anyio.lowlevel.checkpoint()
        self.asked.append(member.node)
        error = self.errors[member.node]
        if error is not None:
            raise error
        return member.node

    async def ask(self) -> list[str]:
        """Who was asked, up to the one that answered."""
        self.asked.clear()
        assert await self.pool.first(self.attempt) == self.asked[-1]
        return list(self.asked)


async def test_each_in_its_turn() -> None:
    nodes = Nodes()
    assert [await nodes.ask() for _ in range(4)] == [["a"], ["b"], ["c"], ["a"]]


def test_a_look_takes_nobodys_turn() -> None:
    pool = Nodes().pool
    assert [pool.next().node for _ in range(2)] == ["a", "a"]
    pool.take_turn()
    assert pool.next().node == "b"
    assert [member.node for member in pool.order()] == ["b", "c", "a"]
    assert pool.next().node == "c"


async def test_the_one_with_fewest_requests_first() -> None:
    nodes = Nodes()
    a, b, _ = nodes.pool.members
    visits = [a.visit(), a.visit(), b.visit()]
    assert await nodes.ask() == ["c"]
    assert nodes.pool.status()[0] == NodeStatus("a", requests=2, answers=True)
    for visit in visits:
        visit.leave()
        visit.leave()
    assert [status.requests for status in nodes.pool.status()] == [0, 0, 0]


async def test_a_busy_node_is_skipped_and_keeps_its_turn() -> None:
    nodes = Nodes(a=Busy("a is busy"))
    assert await nodes.ask() == ["a", "b"]
    assert nodes.pool.status()[0].answers, "busy is not sick"


async def test_all_busy_is_429_with_the_shortest_wait() -> None:
    nodes = Nodes(a=Busy("", retry_after=7), b=Busy("", retry_after=2), c=Busy(""))
    with pytest.raises(Busy, match="3 decode nodes are busy; try again later") as caught:
        await nodes.ask()
    assert caught.value.retry_after == 2
    assert len(nodes.asked) == 3


async def test_busy_or_dead_is_busy() -> None:
    nodes = Nodes(a=Busy(""), b=ConnectFailed("refused"), c=UpstreamInvalid("html"))
    with pytest.raises(UpstreamInvalid):
        await nodes.ask()
    nodes.errors["c"] = NotReady("draining")
    with pytest.raises(Busy, match="1 decode nodes are busy, and 2 cannot be used") as caught:
        await nodes.ask()
    assert caught.value.retry_after == 1


@pytest.mark.parametrize(
    "error", [ConnectFailed("refused"), UpstreamClosed("reset"), NotReady("draining")]
)
async def test_a_dead_one_and_then_the_next(error: TilertStreamError) -> None:
    assert await Nodes(a=error).ask() == ["a", "b"]


async def test_all_dead_is_the_first_ones_error() -> None:
    nodes = Nodes(a=ConnectFailed("a"), b=ConnectFailed("b"), c=UpstreamClosed("c"))
    with pytest.raises(ConnectFailed, match=r"^a$"):
        await nodes.ask()
    assert nodes.asked == ["a", "b", "c"]


@pytest.mark.parametrize("error", [UpstreamTimeout("late"), UpstreamInvalid("html")])
async def test_what_may_have_been_begun_is_not_asked_of_another(error: UpstreamError) -> None:
    nodes = Nodes(a=error)
    with pytest.raises(type(error)):
        await nodes.ask()
    assert nodes.asked == ["a"]


async def test_pd_09_a_refused_request_is_asked_once() -> None:
    nodes = Nodes(a=InvalidRequest("top_k"))
    with pytest.raises(InvalidRequest):
        await nodes.ask()
    assert nodes.asked == ["a"]


async def test_one_that_did_not_answer_comes_last_for_a_while(
    caplog: pytest.LogCaptureFixture,
) -> None:
    nodes = Nodes(a=ConnectFailed("refused"))
    with caplog.at_level(logging.WARNING):
        await nodes.ask()
    assert "decode node a: refused" in caplog.text
    nodes.errors["a"] = None
    assert [status.answers for status in nodes.pool.status()] == [False, True, True]
    assert [await nodes.ask() for _ in range(3)] == [["b"], ["c"], ["b"]]
    nodes.clock.now += 6
    assert [await nodes.ask() for _ in range(3)] == [["b"], ["c"], ["a"]]


async def test_it_is_asked_if_nobody_else_can() -> None:
    nodes = Nodes(a=ConnectFailed("refused"))
    await nodes.ask()
    nodes.errors |= {"a": None, "b": Busy(""), "c": Busy("")}
    assert (await nodes.ask())[-1] == "a"
    assert nodes.pool.status()[0].answers, "it has answered again"


@pytest.mark.parametrize(
    "error",
    [
        InvalidRequest("long"),
        Busy("429"),
        NotReady("503"),
        LayoutMismatch("dtype"),
        NodeRefused("401"),
    ],
)
async def test_err_09_what_says_nothing_of_a_nodes_health(error: TilertStreamError) -> None:
    """20 over-long prompts, 20 refusals: the next good request is served by the same node."""
    pool = Pool[str]("decode", [("a", "a")])

    async def fail(_member: Member[str]) -> str:
        await anyio.lowlevel.checkpoint()
        raise error

    for _ in range(20):
        with pytest.raises(type(error)):
            await pool.first(fail)
    assert pool.status() == [NodeStatus("a", requests=0, answers=True)]


@pytest.mark.parametrize(
    "error",
    [
        ConnectFailed("refused"),
        UpstreamClosed("reset"),
        UpstreamTimeout("late"),
        UpstreamInvalid("html"),
        NodeFailed("500"),
        DecodeFailed("500"),
    ],
)
async def test_err_09_a_node_that_fails_at_once_does_not_have_every_request(
    error: UpstreamError,
) -> None:
    """It always has the fewest, and would be asked first for each while others work."""
    nodes = Nodes(a=error)
    visits: list[Visit] = []
    failed = 0
    for _ in range(20):
        try:
            (*_, name) = await nodes.ask()
        except UpstreamError:
            failed += 1
        else:
            visits.append(next(m for m in nodes.pool.members if m.name == name).visit())
    assert nodes.pool.status()[0].answers is False
    assert failed <= 1
    for visit in visits:
        visit.leave()
    nodes.clock.now += 6
    nodes.errors["a"] = None
    assert [each for _ in range(3) for each in await nodes.ask()].count("a") == 1, "and is back"


def test_no_node_is_a_fault_of_configuration() -> None:
    with pytest.raises(ConfigError, match=r"there is no prefill node.*--prefill"):
        Pool("prefill", [])


async def test_pd_23_counters_come_back_to_nothing() -> None:
    """Whatever goes wrong, at whichever step, however often it is given back."""
    chance = random.Random(23)
    pool = Pool("decode", [(name, name) for name in "abc"])
    faults: list[TilertStreamError | None] = [
        None,
        Busy(""),
        ConnectFailed(""),
        NotReady(""),
        InvalidRequest(""),
        UpstreamTimeout(""),
    ]
    open_visits: list[Visit] = []

    async def attempt(member: Member[str]) -> Visit:
        visit = member.visit()
        fault = chance.choice(faults)
        if fault is not None:
            visit.leave()
            raise fault
        return visit

    for _ in range(10_000):
        try:
            open_visits.append(await pool.first(attempt))
        except TilertStreamError:
            assert all(status.requests >= 0 for status in pool.status())
        while open_visits and chance.random() < 0.5:
            visit = open_visits.pop(chance.randrange(len(open_visits)))
            visit.leave()
            visit.leave()
    for visit in open_visits:
        visit.leave()
    assert [status.requests for status in pool.status()] == [0, 0, 0]
