"""Routers that share a decode node, lose one of them, and requests that somebody sends again."""

from __future__ import annotations

from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.lowlevel
import orjson
import pytest

from tests.pd.cluster import LIMIT, Answer, Cluster
from tilert_engine.scripted import Script
from tilert_stream.http.client import Origin, UpstreamError
from tilert_stream.testing import Gate
from tilert_transports.control.auth import SIGNATURE_HEADER, ClusterKey

if TYPE_CHECKING:
    from collections.abc import Sequence

SECRET: Final = "k" * 16


def says(name: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": name}], "max_tokens": 2}


async def in_the_nodes_line(cluster: Cluster, count: int) -> None:
    """Wait until the heads of so many routers' lines stand there."""
    admission = cluster.decode_apps[0].node.admission
    while admission.statistics().waiting < count:
        await anyio.lowlevel.checkpoint()


async def test_dis_14_two_routers_take_turns_at_one_slot() -> None:
    opened: list[str] = []

    def token(prompt: Sequence[int], index: int) -> int:
        if index == 0:
            opened.append(bytes(prompt).decode())
        return prompt[index % len(prompt)]

    with Gate() as gate:
        script = Script(before_chain=gate.pass_through, token=token)
        cluster = Cluster(decode=[script], slots=1)
        answers: dict[str, Answer] = {}
        async with cluster.running(), AsyncExitStack() as stack:
            stack.callback(gate.open)
            other = (await cluster.add_router()).origin
            hasty = (await cluster.add_router(queue_timeout=0.0)).origin

            async def ask(name: str, origin: Origin) -> None:
                answers[name] = await cluster.ask(origin, **says(name))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask, "first", cluster.origin)
                await gate.arrival()
                for place in (1, 2, 3):
                    for letter, origin in (("a", cluster.origin), ("b", other)):
                        tasks.start_soon(ask, f"{letter}{place}", origin)
                        await cluster.waiting(place, origin)
                        if place == 1:
                            await in_the_nodes_line(cluster, 1 if letter == "a" else 2)
                refused = await cluster.ask(hasty, **says("c1"))
                assert (refused.status, refused.error) == (429, "slots_busy")
                gate.open()
            await cluster.idle()
            assert opened == ["first", "a1", "b1", "a2", "b2", "a3", "b3"]
            assert {name: answer.text for name, answer in answers.items()} == {
                name: name[:2] for name in opened
            }


@pytest.mark.parametrize("place", ["before_chunk", "before_import", "before_chain"])
async def test_a_router_that_dies_frees_its_slots_and_a_new_one_is_served(place: str) -> None:
    with Gate() as gate:
        hooks: dict[str, Any] = {place: gate.pass_through}
        script = Script(**hooks)
        cluster = Cluster(prefill=script, decode=[script], slots=1)
        async with cluster.running(), AsyncExitStack() as stack:
            stack.callback(gate.open)
            dying = await cluster.add_router()

            async def ask() -> None:
                # Before the head there is no answer at all.
                with suppress(UpstreamError):
                    answer = await cluster.ask(dying.origin, max_tokens=30)
                    assert not answer.whole

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask)
                await gate.arrival()
                dying.server.cut()
            gate.open()
            await cluster.idle()
            for origin in (cluster.origin, (await cluster.add_router()).origin):
                assert (await cluster.ask(origin, max_tokens=3)).text == "abc"
            await cluster.idle()


async def test_a_captured_request_is_taken_once() -> None:
    keys = {"cluster_key": SECRET}
    cluster = Cluster(slots=2, prefill_options=keys, decode_options=keys, router_options=keys)
    async with cluster.running():
        origin = Origin.parse(f"http://127.0.0.1:{cluster.decode_nodes[0].port}")

        async def send(path: str, body: bytes, signature: str) -> tuple[int, Any]:
            headers = ((SIGNATURE_HEADER, signature),)
            async with cluster.client.request(origin, "POST", path, headers, body) as response:
                return response.status, orjson.loads(await response.read(65536, within=LIMIT))

        def signed(path: str, **fields: Any) -> tuple[str, bytes, str]:
            body = orjson.dumps(fields)
            return path, body, ClusterKey(SECRET).sign("POST", path, body)

        reserve = signed("/pd/reserve", rid="a1", max_len=9)
        cancel = signed("/pd/cancel", rid="a1")
        assert (await send(*reserve))[0] == 200
        assert (await send(*cancel))[0] == 200
        for captured in (reserve, cancel):
            status, answer = await send(*captured)
            assert (status, answer["error"]["code"]) == (401, "invalid_cluster_signature")
        path, _, signature = signed("/pd/reserve", rid="a1", max_len=9)
        altered = orjson.dumps({"rid": "a1", "max_len": 10})
        assert (await send(path, altered, signature))[0] == 401
        assert (await send("/pd/renew", *signed("/pd/reserve", rid="a1", max_len=9)[1:]))[0] == 401
        assert cluster.held == {}
        assert (await cluster.ask(max_tokens=3)).text == "abc"


@pytest.mark.parametrize("given", ["same", "", "x" * 10_000])
async def test_kv_11_one_name_given_to_two_requests_names_neither_inside(given: str) -> None:
    """What a client calls its request is for its own eyes; between nodes each has its own id."""
    seen: set[str] = set()
    with Gate() as gate:
        cluster = Cluster(decode=[Script(before_chain=gate.pass_through)])
        answers: list[Answer] = []
        async with cluster.running(), AsyncExitStack() as stack:
            stack.callback(gate.open)

            async def ask() -> None:
                answers.append(await cluster.ask(None, (("x-request-id", given),), max_tokens=9))

            async with anyio.create_task_group() as tasks:
                for _ in range(2):
                    tasks.start_soon(ask)
                while len(seen) < 2:
                    seen.update(cluster.decode_apps[0].node.requests)
                    await anyio.lowlevel.checkpoint()
                gate.open()
            await cluster.idle()
    assert [answer.text for answer in answers] == ["abcabcabc"] * 2
    assert all(len(rid) == 32 and int(rid, 16) >= 0 for rid in seen)
