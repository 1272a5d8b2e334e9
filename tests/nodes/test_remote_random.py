"""Requests that meet a random fault at a random step, many at once: no counter is ever off."""

from __future__ import annotations

import random
from contextlib import aclosing, suppress
from typing import Any

import anyio
import pytest

from tests.nodes.routing import Router, make, routing
from tests.switched_limits import SwitchedLimits
from tilert_stream.errors import InterTokenTimeout, TilertStreamError
from tilert_stream.events import Finished
from tilert_stream.service import Service
from tilert_stream.testing.pd_nodes import Answer, ScriptedDecodeNode, ScriptedPrefillNode

FAULTS: dict[str, list[Answer | None]] = {
    "reserve": [
        Answer(429, b'{"error":"busy"}', {"retry-after": "1"}),
        Answer(503, b"{}"),
        Answer(500, b"boom"),
        Answer(200, b"<html>"),
        Answer(400, b'{"error":"long","code":"context_length_exceeded"}'),
        None,
    ],
    "prefill": [
        Answer(400, b'{"error":{"message":"no"}}'),
        Answer(429, b"{}"),
        Answer(200, b"{}"),
        Answer(200, b'{"choices":[{"token_ids":[1],"finish_reason":"abort"}]}'),
        None,
    ],
    "decode": [
        Answer(410, b'{"error":"gone","code":"kv_grant_gone"}'),
        Answer(504, b'{"error":"kv_transfer_timeout"}'),
        Answer(200, b""),
        Answer(200, b'{"t":[97]}\n{"t":[98]}\n'),
        Answer(200, b'{"t":[97]}\n{"error":"device lost"}\n'),
        Answer(200, b'{"t":[97]}\n<html>\n'),
        None,
    ],
}
"""What a node answers, by step; None: it never does, and the client leaves."""


class Chance:
    """Nodes whose hooks look up what is to go wrong with a request."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.plans: dict[str, tuple[str, Answer | None]] = {}
        self.stuck: dict[str, anyio.Event] = {}
        self.told: set[int] = set()
        """Statuses that clients have read."""
        hooks = {f"/pd/{step}": self._hook(step) for step in ("reserve", "decode")}
        self.decodes = [ScriptedDecodeNode(slots=3, hooks=hooks) for _ in range(2)]
        self.prefill = ScriptedPrefillNode(before_answer=self._hook("prefill"))

    def plan(self, rid: str) -> None:
        self.stuck[rid] = anyio.Event()
        step = self.random.choice([*FAULTS, "nothing"])
        if step != "nothing":
            self.plans[rid] = (step, self.random.choice(FAULTS[step]))

    def _hook(self, step: str) -> Any:
        async def hook(fields: dict[str, Any]) -> Answer | None:
            rid: str = fields.get("rid") or fields["request_id"]
            planned, answer = self.plans.get(rid, ("nothing", None))
            if planned != step:
                return None
            if answer is None:
                self.stuck[rid].set()
                await anyio.sleep_forever()
            return answer

        return hook

    async def ask(self, router: Router, rid: str) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._leave_if_stuck, rid, tasks.cancel_scope)
            limit = self.random.choice([None, None, 1, 2])
            try:
                async with aclosing(router.service.stream(make(8, rid))) as deltas:
                    count = 0
                    async for _ in deltas:
                        count += 1
                        if count == limit:
                            break
            except TilertStreamError as error:
                self.told.add(error.status)
            tasks.cancel_scope.cancel()

    async def _leave_if_stuck(self, rid: str, scope: anyio.CancelScope) -> None:
        await self.stuck[rid].wait()
        scope.cancel()


@pytest.mark.parametrize("seed", range(2))
async def test_pd_23_whatever_goes_wrong_at_whichever_step(seed: int) -> None:
    chance = Chance(seed)
    async with routing(chance.prefill, chance.decodes) as router:
        numbers = iter(range(80))

        async def client() -> None:
            for number in numbers:
                rid = f"{number:06x}"
                chance.plan(rid)
                await chance.ask(router, rid)
                for pool in (router.prefills, router.decodes):
                    assert all(node.requests >= 0 for node in pool.status())

        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(client)
        assert router.service.ledger.counts == {}
        await router.everything_is_back()
        assert {400, 429, 502, 504} <= chance.told


@pytest.mark.parametrize("speaks", [True, False])
async def test_err_06_a_node_that_is_alive_and_silent(speaks: bool) -> None:
    """Only tokens count as a sign of life: its empty lines do not."""
    first = [b'{"t":[97]}\n{"t":[98]}\n{"t":[99]}\n']
    node = ScriptedDecodeNode()
    left = anyio.Event()

    async def silent(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] != "/pd/decode" or not first:
            await node(scope, receive, send)
            return
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": first.pop(), "more_body": True})

        async def speak() -> None:
            with suppress(OSError):
                while speaks:
                    await send({"type": "http.response.body", "body": b"\n", "more_body": True})
                    await anyio.lowlevel.checkpoint()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(speak)
            while (await receive())["type"] != "http.disconnect":
                pass
            tasks.cancel_scope.cancel()
        node.held.clear()
        left.set()

    async with routing(ScriptedPrefillNode(), [silent]) as router:
        limits = SwitchedLimits(inter_token=0.1)
        impatient = Service(router.pipeline, time_limits=limits)
        deltas: list[str] = []

        async def read() -> None:
            async for delta in impatient.stream(make(9)):
                deltas.append(delta.text)
                if "".join(deltas) == "abc":
                    limits.count()

        async with impatient:
            with pytest.raises(InterTokenTimeout):
                await read()
            assert "".join(deltas) == "abc"
            assert impatient.ledger.counts == {}
        await left.wait()
        assert await router.answer(make(2, "f00d")) == ("ae", 2, Finished("length"))
