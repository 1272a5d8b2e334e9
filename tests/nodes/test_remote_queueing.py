"""Every decode node is busy: requests wait in line for the first slot that comes free anywhere."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from tests.nodes.routing import Host, Router, letters, make, routing
from tilert_stream.errors import Busy, ContextLengthExceeded
from tilert_stream.events import Finished
from tilert_stream.http.client import ConnectFailed, UpstreamClosed, UpstreamError
from tilert_stream.testing.pd_nodes import Answer, ScriptedDecodeNode, ScriptedPrefillNode

WHOLE = ("abc", 3, Finished("length"))


class Waiting:
    """A decode node whose one slot another router has; it says who stands in its line."""

    def __init__(self, answer: Answer | None = None) -> None:
        self.freed = anyio.Event()
        self.asked = anyio.Event()
        self.answer = answer
        self.app = ScriptedDecodeNode(token=letters, hooks={"/pd/reserve": self._wait})
        self.app.held["another"] = 7

    async def _wait(self, fields: dict[str, Any]) -> Answer | None:
        if not fields.get("wait_s"):
            return None
        self.asked.set()
        await self.freed.wait()
        return self.answer

    def free(self) -> None:
        self.app.held.pop("another", None)
        self.freed.set()


@dataclass
class Line:
    """A router whose two decode nodes are both busy."""

    router: Router
    nodes: list[Waiting]

    async def stands(self) -> None:
        """Wait until a request stands in both nodes' lines."""
        for node in self.nodes:
            await node.asked.wait()


@pytest.fixture
async def line() -> AsyncGenerator[Line]:
    nodes = [Waiting(), Waiting()]
    apps = [node.app for node in nodes]
    async with routing(ScriptedPrefillNode(), apps, queue_timeout=600) as router:
        yield Line(router, nodes)


async def answer(router: Router, answers: list[Any]) -> None:
    answers.append(await router.answer(make(3)))


@pytest.mark.parametrize("which", [0, 1])
async def test_dis_14_the_first_node_that_has_a_slot_serves_the_head_of_the_line(
    line: Line,
    which: int,
) -> None:
    answers: list[Any] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(answer, line.router, answers)
        await line.stands()
        assert [status.requests for status in line.router.decodes.status()] == [0, 0]
        line.nodes[which].free()
    assert answers == [WHOLE]
    other = line.nodes[1 - which].app
    other.held.pop("another")
    await line.router.everything_is_back()
    assert other.cancelled == ["feed"], "it may have granted in the same moment"
    assert "/pd/decode" not in other.paths()


async def test_both_grant_in_the_same_moment(line: Line) -> None:
    answers: list[Any] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(answer, line.router, answers)
        await line.stands()
        for node in line.nodes:
            node.free()
    assert answers == [WHOLE]
    assert [node.app.paths().count("/pd/decode") for node in line.nodes] in ([0, 1], [1, 0])


async def test_a_client_that_leaves_the_line_leaves_every_nodes_line(line: Line) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(line.router.answer, make(3))
        await line.stands()
        tasks.cancel_scope.cancel()
    assert line.router.service.ledger.counts == {}
    for node in line.nodes:
        node.free()


async def test_a_request_that_never_fits_does_not_wait() -> None:
    too_long = Answer(400, b'{"error":"the window is 5","code":"context_length_exceeded"}')
    node = Waiting(too_long)
    async with routing(ScriptedPrefillNode(), node.app, queue_timeout=600) as router:
        node.free()
        node.app.held["another"] = 7
        assert isinstance(await router.error_of(make()), ContextLengthExceeded)
        node.app.held.clear()
        node.answer = None


async def test_a_node_that_dies_with_a_line_before_it() -> None:
    """No other is busy: it is no use waiting."""
    hosts: list[Host] = []
    node = Waiting()
    errors: list[Any] = []
    async with routing(
        ScriptedPrefillNode(),
        node.app,
        queue_timeout=600,
        prepare=lambda _p, d: hosts.extend(d),
        serves_next=False,
    ) as router:

        async def ask() -> None:
            errors.append(await router.error_of(make()))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await node.asked.wait()
            hosts[0].kill()
        assert isinstance(errors[0], UpstreamError)
        assert errors[0].status in (502, 503)


async def test_a_dead_node_does_not_end_the_wait_for_a_busy_one() -> None:
    node = Waiting()
    answers: list[Any] = []
    async with routing(
        ScriptedPrefillNode(),
        [ScriptedDecodeNode(), node.app],
        queue_timeout=600,
        prepare=lambda _p, d: d[0].kill(),
    ) as router:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(answer, router, answers)
            await node.asked.wait()
            node.free()
        assert answers == [WHOLE]


async def test_time_is_up_for_who_waits() -> None:
    node = Waiting()
    async with routing(ScriptedPrefillNode(), node.app, queue_timeout=0.05) as router:
        error = await router.error_of(make())
        assert isinstance(error, Busy)
        assert (error.status, error.code, error.retry_after) == (429, "slots_busy", 1)
        assert "within 0.05 s" in error.message
        node.free()


async def test_nobody_is_there_is_no_reason_to_wait() -> None:
    async with routing(
        ScriptedPrefillNode(),
        ScriptedDecodeNode(),
        queue_timeout=600,
        prepare=lambda _p, d: d[0].kill(),
        serves_next=False,
    ) as router:
        assert isinstance(await router.error_of(make()), ConnectFailed | UpstreamClosed)


async def test_dis_14_a_stock_node_is_asked_again_when_a_request_of_ours_leaves_it() -> None:
    """It knows no waiting, and tells nobody when it is free."""
    arrived, go = anyio.Event(), anyio.Event()

    async def between(index: int) -> None:
        if index == 1:
            arrived.set()
            await go.wait()

    decode = ScriptedDecodeNode(token=letters, stock=True, between=between)
    async with routing(ScriptedPrefillNode(), decode, queue_timeout=600) as router:
        answers: dict[str, Any] = {}

        async def ask(rid: str) -> None:
            answers[rid] = await router.answer(make(3, rid))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, "a1")
            await arrived.wait()
            tasks.start_soon(ask, "b2")
            while decode.paths().count("/decode_status") < 3:
                await anyio.lowlevel.checkpoint()
            assert list(answers) == []
            go.set()
        assert answers == {"a1": WHOLE, "b2": WHOLE}
