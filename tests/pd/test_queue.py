"""The router's line for decode slots, in front of real decode nodes."""

from __future__ import annotations

import re

import anyio
import anyio.lowlevel
import pytest

from tests.pd.cluster import Answer, Cluster
from tilert_engine.scripted import Script
from tilert_stream.testing import Gate

both = pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])


class Clients:
    """Requests by name, and the order in which they were answered."""

    tasks: anyio.abc.TaskGroup

    def __init__(self, cluster: Cluster, *, stream: bool) -> None:
        self.cluster = cluster
        self.stream = stream
        self.answers: dict[str, Answer] = {}
        self._scopes: dict[str, anyio.CancelScope] = {}

    async def join(self, name: str, place: int) -> None:
        """Ask, and be number ``place`` of the line."""
        self.tasks.start_soon(self.ask, name)
        await self.cluster.waiting(place)

    async def ask(self, name: str) -> None:
        with anyio.CancelScope() as self._scopes[name]:
            self.answers[name] = await self.cluster.ask(stream=self.stream, max_tokens=3)

    def leave(self, name: str) -> None:
        self._scopes[name].cancel()


@both
async def test_dis_14_first_come_first_served_and_a_gone_waiter_neither_takes_nor_blocks(
    stream: bool,
) -> None:
    with Gate() as gate:
        cluster = Cluster(decode=[Script(before_chain=gate.pass_through)], slots=1)
        async with cluster.running():
            clients = Clients(cluster, stream=stream)
            async with anyio.create_task_group() as clients.tasks:
                clients.tasks.start_soon(clients.ask, "served")
                await gate.arrival()
                for place, name in enumerate("abcd", 1):
                    await clients.join(name, place)
                clients.leave("a")  # at the head, in the node's own line
                await cluster.waiting(3)
                clients.leave("c")
                await cluster.waiting(2)
                gate.open()
            assert list(clients.answers) == ["served", "b", "d"]
            assert {answer.text for answer in clients.answers.values()} == {"abc"}
            await cluster.idle()
            assert cluster.decode_apps[0].node.admission.statistics().waiting == 0


@both
async def test_dis_14_a_full_line_and_a_long_wait_are_429(stream: bool) -> None:
    with Gate() as gate:
        cluster = Cluster(
            decode=[Script(before_chain=gate.pass_through)],
            slots=1,
            router_options={"max_queue": 1},
        )
        async with cluster.running():
            hasty = (await cluster.add_router(queue_timeout=0.1)).origin
            clients = Clients(cluster, stream=stream)
            async with anyio.create_task_group() as clients.tasks:
                clients.tasks.start_soon(clients.ask, "served")
                await gate.arrival()
                await clients.join("waits", 1)
                full = await cluster.ask(stream=stream)
                assert (full.status, full.error) == (429, "slots_busy")
                assert "1 requests already wait for a decode slot" in full.message
                late = await cluster.ask(hasty, stream=stream, max_tokens=3)
                assert (late.status, late.error) == (429, "slots_busy")
                # The router's words, or the node's, whose time is up in the same moment.
                assert re.search(r"(came free within|stayed busy for) 0\.1 s", late.message)
                await cluster.waiting(0, hasty)
                gate.open()
            assert {answer.text for answer in clients.answers.values()} == {"abc"}
            await cluster.idle()
            assert (await cluster.ask(hasty, max_tokens=3)).whole


async def test_dis_14_a_slot_of_any_node_serves_the_line() -> None:
    with Gate() as gate, Gate() as other:
        scripts = [Script(before_chain=each.pass_through) for each in (gate, other)]
        cluster = Cluster(decode=scripts, slots=1)
        async with cluster.running():
            clients = Clients(cluster, stream=True)
            async with anyio.create_task_group() as clients.tasks:
                for name in "ab":
                    clients.tasks.start_soon(clients.ask, name)
                await gate.arrival()
                await other.arrival()
                await clients.join("waits", 1)
                other.open()
                while "waits" not in clients.answers:
                    await anyio.lowlevel.checkpoint()
                assert clients.answers["waits"].text == "abc"
                gate.open()
            await cluster.idle()
            for app in cluster.decode_apps:
                assert app.node.admission.statistics().waiting == 0
