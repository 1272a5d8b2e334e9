"""A prefill that has been asked early is one of its node's requests, until it is over: once."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.lowlevel
import pytest

from tests.nodes.routing import Router, letters, make, routing
from tests.nodes.test_remote_early import WHOLE
from tilert_stream.cluster.pool import Member, Pool
from tilert_stream.nodes.remote_prefill import EarlyPrefill
from tilert_stream.testing.pd_nodes import Answer, ScriptedDecodeNode, ScriptedPrefillNode


class Closing:
    """What has been begun, as far as it is closed."""

    def __init__(self) -> None:
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


class Standing:
    """Nodes at which one request's two legs stand until they are let go."""

    def __init__(self, *, prefills: int = 1, answer: Answer | None = None) -> None:
        self.reserving = anyio.Event()
        self.may_reserve = anyio.Event()
        self._answer = answer
        self.prefills = [ScriptedPrefillNode(before_answer=self._prefill) for _ in range(prefills)]
        self.decode = ScriptedDecodeNode(
            slots=4, token=letters, hooks={"/pd/reserve": self._reserve}
        )
        self.may_prefill = anyio.Event()
        self.prefilling = anyio.Event()

    async def _reserve(self, fields: dict[str, Any]) -> Answer | None:
        if fields["rid"] != "cafe":
            return None
        self.reserving.set()
        await self.may_reserve.wait()
        return self._answer if "generation" in fields else None

    async def _prefill(self, fields: dict[str, Any]) -> None:
        if fields["request_id"] == "cafe":
            self.prefilling.set()
            await self.may_prefill.wait()

    async def both_asked(self) -> None:
        await self.reserving.wait()
        await self.prefilling.wait()

    def let_go(self) -> None:
        self.may_prefill.set()
        self.may_reserve.set()


async def met(router: Router) -> None:
    """One answer, by which the router knows its decode node."""
    assert await router.answer(make(3)) == WHOLE
    await router.everything_is_back()


def requests(router: Router) -> list[int]:
    return [status.requests for status in router.prefills.status()]


async def test_it_counts_from_the_moment_that_it_is_sent() -> None:
    """And goes on as the same visit when it is awaited."""
    standing = Standing()
    async with routing(standing.prefills, standing.decode) as router:
        await met(router)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(router.answer, make(3, "cafe"))
            await standing.both_asked()
            assert requests(router) == [1], "nothing has been granted yet"
            standing.may_reserve.set()
            while "cafe" not in standing.decode.held:
                await anyio.lowlevel.checkpoint()
            assert requests(router) == [1]
            standing.may_prefill.set()
        await router.everything_is_back()
        assert requests(router) == [0]


async def test_a_node_that_could_not_be_asked_early_is_asked_all_the_same() -> None:
    """There is no connection to it yet; that costs it no turn."""
    standing = Standing(prefills=3)
    async with routing(standing.prefills, standing.decode) as router:
        for rid in ("a1", "a2", "a3", "a4", "a5", "a6"):
            assert await router.answer(make(3, rid)) == WHOLE
            await router.everything_is_back()
        assert [len(node.calls) for node in standing.prefills] == [2, 2, 2]


async def test_the_next_request_goes_to_the_node_that_has_none() -> None:
    """Though its turn would have been the other's."""
    standing = Standing(prefills=2)
    async with routing(standing.prefills, standing.decode) as router:
        for rid in ("a1", "a2"):
            assert await router.answer(make(3, rid)) == WHOLE
            await router.everything_is_back()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(router.answer, make(3, "cafe"))
            await standing.both_asked()
            assert requests(router) == [1, 0]
            for rid in ("b1", "b2", "b3"):
                assert await router.answer(make(3, rid)) == WHOLE
            asked = [[call["request_id"] for call in node.calls] for node in standing.prefills]
            assert asked == [["a1", "cafe"], ["a2", "b1", "b2", "b3"]]
            standing.let_go()


REFUSALS = [
    Answer(429, b'{"error":"busy","code":"slots_busy"}'),
    Answer(400, b'{"error":"long","code":"context_length_exceeded"}'),
    Answer(409, b'{"error":"dtype","code":"kv_layout_mismatch"}'),
    Answer(500, b"{}"),
    Answer(503, b"{}"),
]


@pytest.mark.parametrize("answer", REFUSALS, ids=lambda answer: str(answer.status))
async def test_a_refused_reservation_ends_it(answer: Answer) -> None:
    standing = Standing(answer=answer)
    async with routing(standing.prefills, standing.decode) as router:
        await met(router)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(router.error_of, make(3, "cafe"))
            await standing.both_asked()
            standing.may_reserve.set()
        assert requests(router) == [0]
        await router.everything_is_back()
        assert standing.prefills[0].aborted == 1


@pytest.mark.parametrize("leg", ["reserve", "prefill"])
async def test_a_reader_that_leaves_ends_it(leg: str) -> None:
    """While the slot is asked for, or when it is there."""
    standing = Standing()
    async with routing(standing.prefills, standing.decode) as router:
        await met(router)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(router.answer, make(3, "cafe"))
            await standing.both_asked()
            if leg == "prefill":
                standing.may_reserve.set()
                while "cafe" not in standing.decode.held:
                    await anyio.lowlevel.checkpoint()
            assert requests(router) == [1]
            tasks.cancel_scope.cancel()
        assert requests(router) == [0]
        await router.everything_is_back()
        assert standing.prefills[0].aborted == 1
        standing.let_go()


@pytest.mark.parametrize("status", [400, 429, 500, 200], ids=str)
async def test_a_prefill_that_fails_ends_it(status: int) -> None:
    """Before the slot is there, or behind it."""

    async def fail(fields: dict[str, Any]) -> Answer | None:
        if fields["request_id"] == "cafe":
            return Answer(status, b'{"error":{"message":"no"}}')
        return None

    for slot_first in (True, False):
        standing = Standing()
        standing.prefills[0].before_answer = fail
        async with routing(standing.prefills, standing.decode) as router:
            await met(router)
            async with anyio.create_task_group() as tasks:
                if slot_first:
                    standing.may_reserve.set()
                tasks.start_soon(router.error_of, make(3, "cafe"))
                await standing.reserving.wait()
                standing.may_reserve.set()
            assert requests(router) == [0]
            await router.everything_is_back()


async def test_another_grant_than_the_foretold_one_ends_it_and_begins_another() -> None:
    standing = Standing()
    async with routing(standing.prefills, standing.decode) as router:
        await met(router)

        async def granted_otherwise(fields: dict[str, Any]) -> None:
            if fields["rid"] == "cafe":
                standing.reserving.set()
                await standing.may_reserve.wait()
                del fields["generation"]

        standing.decode.hooks["/pd/reserve"] = granted_otherwise
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(router.answer, make(3, "cafe"))
            await standing.both_asked()
            standing.may_reserve.set()
            while len(standing.prefills[0].calls) < 3:
                await anyio.lowlevel.checkpoint()
            assert requests(router) == [1], "the second one's"
            standing.may_prefill.set()
        await router.everything_is_back()
        del standing.decode.hooks["/pd/reserve"]


def one_of_a_pool() -> tuple[Member[Any], Closing, EarlyPrefill]:
    pool: Pool[Any] = Pool("prefill", [("p", object())])
    (member,) = pool.members
    begun = Closing()
    held: Any = begun
    return member, begun, EarlyPrefill(member, held)


def test_it_is_given_up_once() -> None:
    member, begun, early = one_of_a_pool()
    assert member.requests == 1
    for _ in range(2):
        early.close()
        assert (member.requests, begun.closed) == (0, 1)
    assert early.take(member) is None


def test_what_was_taken_is_the_takers_to_end() -> None:
    member, begun, early = one_of_a_pool()
    other: Any = one_of_a_pool()[0]
    assert early.take(other) is None
    taken = early.take(member)
    assert taken is not None
    held: object = taken[1]
    assert held is begun
    assert early.take(member) is None
    early.close()
    assert (member.requests, begun.closed) == (1, 0)
    for _ in range(2):
        taken[0].leave()
    assert member.requests == 0
