"""What a router thinks of its nodes: nothing of what clients do counts, what a node does may."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from tests.nodes.routing import Router, letters, make, routing
from tilert_stream.errors import TilertStreamError
from tilert_stream.events import Finished
from tilert_stream.testing.pd_nodes import Answer, ScriptedDecodeNode, ScriptedPrefillNode

WHOLE = ("abc", 3, Finished("length"))
COUNT = 20


class Nodes:
    """Two of each kind, which answer ``bad`` requests alone with a fault."""

    def __init__(self, step: str, answer: Answer | None) -> None:
        self._answer = answer
        self.stuck = anyio.Event()
        hook = self._hook
        self.prefills = [ScriptedPrefillNode() for _ in range(2)]
        if step == "prefill":
            for node in self.prefills:
                node.before_answer = hook
        hooks = {} if step == "prefill" else {f"/pd/{step}": hook}
        self.decodes = [
            ScriptedDecodeNode(token=letters, slots=2, hooks=hooks, between=self._between(step))
            for _ in range(2)
        ]

    async def _hook(self, fields: dict[str, Any]) -> Answer | None:
        rid: str = fields.get("rid") or fields["request_id"]
        if not rid.startswith("bad"):
            return None
        if self._answer is None:
            await self._stand()
        return self._answer

    def _between(self, step: str) -> Any:
        async def between(index: int) -> None:
            if step == "stream" and index == 2 and any(rid[:3] == "bad" for rid in self.held):
                await self._stand()

        return between

    @property
    def held(self) -> list[str]:
        return [rid for node in self.decodes for rid in node.held]

    async def _stand(self) -> None:
        self.stuck.set()
        await anyio.sleep_forever()

    async def bad_request(self, router: Router, number: int) -> None:
        """Answered with the fault, or left where it stands."""
        self.stuck = anyio.Event()
        request = make(9, f"bad{number:04x}")
        if self._answer is not None:
            assert isinstance(await router.error_of(request), TilertStreamError)
            return
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(router.answer, request)
            await self.stuck.wait()
            tasks.cancel_scope.cancel()


FAULTS = [
    pytest.param("prefill", Answer(400, b'{"error":{"message":"long"}}'), id="prefill 400"),
    pytest.param("prefill", Answer(422, b'{"error":{"message":"url"}}'), id="prefill 422"),
    pytest.param("prefill", Answer(429, b"{}"), id="prefill 429"),
    pytest.param("prefill", Answer(503, b"{}"), id="prefill 503"),
    pytest.param("reserve", Answer(400, b'{"error":"long"}'), id="reserve 400"),
    pytest.param("reserve", Answer(429, b'{"error":"busy"}'), id="reserve 429"),
    pytest.param("reserve", Answer(503, b'{"error":"draining"}'), id="reserve 503"),
    pytest.param("decode", Answer(400, b'{"error":"no"}'), id="decode 400"),
    pytest.param("prefill", None, id="leaves prefill"),
    pytest.param("reserve", None, id="leaves reserve"),
    pytest.param("decode", None, id="leaves decode"),
    pytest.param("stream", None, id="leaves the stream"),
]


@pytest.mark.parametrize(("step", "answer"), FAULTS)
async def test_err_09_twenty_of_them_say_nothing_of_a_nodes_health(
    step: str, answer: Answer | None
) -> None:
    nodes = Nodes(step, answer)
    async with routing(nodes.prefills, nodes.decodes) as router:
        for number in range(COUNT):
            await nodes.bad_request(router, number)
            await router.everything_is_back()
        for pool in (router.prefills, router.decodes):
            assert [status.answers for status in pool.status()] == [True, True]
        for number in range(2):
            assert await router.answer(make(3, f"600d{number}")) == WHOLE


@pytest.mark.parametrize("step", ["prefill", "reserve"])
async def test_err_09_a_node_that_answers_500_is_asked_last(step: str) -> None:
    """The first of two does, to every request: one client at most is told so."""
    asked: list[str] = []

    async def fail(fields: dict[str, Any]) -> Answer:
        asked.append(fields.get("rid") or fields["request_id"])
        return Answer(500, b'{"error":{"message":"EngineDeadError"}}')

    prefills = [ScriptedPrefillNode(), ScriptedPrefillNode()]
    decodes = [ScriptedDecodeNode(token=letters), ScriptedDecodeNode(token=letters)]
    if step == "prefill":
        prefills[0].before_answer = fail
    else:
        decodes[0].hooks["/pd/reserve"] = fail
    async with routing(prefills, decodes) as router:
        pool = router.prefills if step == "prefill" else router.decodes
        pool.shun = 60.0
        answers = [await router.answer(make(3, f"{number:04x}")) for number in range(6)]
        assert answers.count(WHOLE) >= 5
        assert len(asked) == 1
        assert [status.answers for status in pool.status()] == [False, True]
