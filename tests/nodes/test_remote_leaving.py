"""The client leaves, in every phase: both nodes learn it, and nobody holds anything."""

from __future__ import annotations

import logging
from typing import Any

import anyio
import pytest

from tests.nodes.routing import Plain, letters, make, routing
from tilert_stream.errors import NotReady, PrefillTimeout
from tilert_stream.service import Service
from tilert_stream.testing.pd_nodes import ScriptedDecodeNode, ScriptedPrefillNode


class Stuck:
    """Nodes that stop at one place of the request ``feed``, and only of that."""

    def __init__(self, place: str) -> None:
        self.place = place
        self.arrived = anyio.Event()
        hooks = {f"/pd/{name}": self._hook(name) for name in ("reserve", "decode")}
        self.prefill = ScriptedPrefillNode(before_answer=self._hook("prefill"))
        self.decode = ScriptedDecodeNode(token=letters, hooks=hooks, between=self._between)

    def _hook(self, name: str) -> Any:
        async def hook(fields: dict[str, Any]) -> None:
            rid = fields.get("rid") or fields.get("request_id")
            if name == self.place and rid == "feed":
                await self._stop()

        return hook

    async def _between(self, index: int) -> None:
        if self.place == "stream" and index == 5 and "feed" in self.decode.held:
            await self._stop()

    async def _stop(self) -> None:
        self.arrived.set()
        await anyio.sleep_forever()


PLACES = ["reserve", "prefill", "decode", "stream"]


@pytest.mark.parametrize("place", PLACES)
async def test_dis_01_dis_02_dis_04_left_while_it_is_at(
    place: str, caplog: pytest.LogCaptureFixture
) -> None:
    stuck = Stuck(place)
    async with routing(stuck.prefill, stuck.decode) as router:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(router.answer, make(4000))
            await stuck.arrived.wait()
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
        assert router.service.ledger.counts == {}, "at once"
        assert [status.requests for status in router.decodes.status()] == [0]
        await router.everything_is_back()
        assert stuck.decode.cancelled == ["feed"]
        assert stuck.prefill.aborted == (place == "prefill")
        assert stuck.decode.left == (place in ("decode", "stream"))
        assert [record for record in caplog.records if record.levelno > logging.INFO] == []


@pytest.mark.parametrize("place", PLACES)
async def test_a_request_that_is_failed_from_outside(place: str) -> None:
    """As a time limit does it: the error is there at once, and everything goes back."""
    stuck = Stuck(place)
    async with routing(stuck.prefill, stuck.decode) as router:
        async with router.service.open(make(4000), Plain) as stream:
            await stuck.arrived.wait()
            stream.fail(PrefillTimeout("too long"))
            assert router.service.ledger.counts == {}
            async for _ in stream:
                pass
            assert stream.outcome is not None
            assert isinstance(stream.outcome.error, PrefillTimeout)
        await router.everything_is_back()
        assert stuck.decode.cancelled == ["feed"]


@pytest.mark.parametrize("place", PLACES)
async def test_the_service_ends_with_a_request_in_it(place: str) -> None:
    stuck = Stuck(place)
    async with routing(stuck.prefill, stuck.decode) as router:
        service = Service(router.pipeline)

        async def read() -> None:
            async for _ in service.stream(make(4000)):
                pass

        async def read_to_its_failure() -> None:
            with pytest.raises(NotReady):
                await read()

        async with anyio.create_task_group() as tasks, service:
            tasks.start_soon(read_to_its_failure)
            await stuck.arrived.wait()
        assert service.ledger.counts == {}
        await router.everything_is_back()


async def test_dis_01_a_node_learns_it_while_no_token_flows() -> None:
    """The connection's end is the sign: it needs no write to fail."""
    stuck = Stuck("stream")
    async with routing(stuck.prefill, stuck.decode) as router:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(router.answer, make(4000))
            await stuck.arrived.wait()
            tasks.cancel_scope.cancel()
        while not stuck.decode.left:
            await anyio.lowlevel.checkpoint()
