"""A decode node that prefill does not reach, or no longer: who waits is told, by no time limit."""

from __future__ import annotations

import socket
import struct
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import orjson
import pytest

from tests.pd.cluster import Answer, Cluster
from tests.pd.layouts import SlowlyPacked
from tests.pd.raw_prefill import raw_prefill
from tests.pd.test_cases_failing import promised
from tests.pd.test_cases_hand_over import like_vllm
from tilert_engine.scripted import Script
from tilert_stream.testing import Gate

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from tilert_stream.http.client import Origin

both = pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])
KEYS = [{}, {"cluster_key": "k" * 16}]


def keyed(key: dict[str, Any]) -> dict[str, Any]:
    return {f"{role}_options": key for role in ("prefill", "decode", "router")}


@asynccontextmanager
async def closed_control_port(cluster: Cluster) -> AsyncGenerator[tuple[Origin, int]]:
    """A router that knows the first node's control port by a number where nobody listens."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        async with cluster.running():
            cluster.ports[0].port = port
            router = await cluster.add_router()
            yield router.origin, port
            await cluster.idle()


@both
@pytest.mark.parametrize("key", KEYS, ids=["open", "keyed"])
@pytest.mark.parametrize("met", [True, False], ids=["met before", "not met"])
async def test_a_closed_control_port_is_told_at_once(
    met: bool, key: dict[str, Any], stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not met:
        like_vllm(monkeypatch)
    cluster = Cluster(slots=1, **keyed(key))
    async with closed_control_port(cluster) as (origin, port):
        for _ in range(2):  # the one slot is free again
            answer = await cluster.ask(origin, stream=stream, max_tokens=9)
            # A stream's first token has left by then, where prefill meets nobody beforehand.
            status = 200 if stream and not met else 503
            assert (answer.status, answer.error) == (status, "kv_peer_lost")
            assert f"no decode node answers at 127.0.0.1 port {port}" in answer.message
            assert not answer.whole
            await cluster.idle()


@both
@pytest.mark.parametrize("met", [True, False], ids=["met before", "not met"])
async def test_another_node_is_asked_where_there_is_one(
    met: bool, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not met:
        like_vllm(monkeypatch)
    cluster = Cluster(decode=[Script(), Script()])
    async with closed_control_port(cluster) as (origin, _):
        answers: list[Answer] = []
        for _ in range(3):
            answers.append(await cluster.ask(origin, stream=stream, max_tokens=9))
            await cluster.idle()
    assert [answer.whole for answer in answers] == [met, True, True]


@both
@pytest.mark.parametrize("how", ["closed", "reset"])
async def test_kv_07_a_peer_that_goes_after_its_claim_is_told_at_once(
    how: str, stream: bool
) -> None:
    with Gate() as gate:
        cluster = Cluster(prefill_layout=SlowlyPacked(gate), slots=1)
        answers: list[Answer] = []
        async with cluster.running():
            async with anyio.create_task_group() as tasks:

                async def ask() -> None:
                    answers.append(await cluster.ask(stream=stream, max_tokens=9))

                tasks.start_soon(ask)
                rid = await promised(cluster)
                await gate.arrival()
                while not cluster.decode_apps[0].service.ledger.counts:
                    await anyio.lowlevel.checkpoint()
                async with raw_prefill(cluster) as raw:
                    await raw.say(raw.claim(rid, 1))
                    assert (await raw.hear())["type"] == "grant"
                    if how == "reset":
                        linger = struct.pack("ii", 1, 0)
                        sock = raw.stream.extra(anyio.abc.SocketAttribute.raw_socket)
                        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                while not answers:
                    await anyio.lowlevel.checkpoint()
            (answer,) = answers
            assert (answer.status, answer.error) == (200 if stream else 503, "kv_peer_lost")
            assert "prefill node raw has gone before its KV cache had landed" in answer.message
            gate.open()
            await cluster.idle()
            assert (await cluster.ask(stream=stream, max_tokens=3)).text == "abc"
            await cluster.idle()


async def test_a_decline_is_for_one_grant() -> None:
    cluster = Cluster(slots=1)
    async with cluster.running():
        node = cluster.decode_nodes[0]
        granted = await cluster.decode_apps[0].node.promise("a1", 9)

        async def decline(**changes: Any) -> tuple[int, Any]:
            fields = {
                "rid": "a1",
                "incarnation": granted.incarnation,
                "generation": granted.generation,
                "reason": "refused",
            }
            body = orjson.dumps({**fields, **changes})
            async with cluster.client.request(
                node.origin, "POST", "/pd/decline", (), body
            ) as response:
                return response.status, orjson.loads(await response.read(65536, within=5))

        wrong: tuple[dict[str, Any], ...] = (
            {"rid": "b2"},
            {"incarnation": "another"},
            {"generation": 7},
        )
        for changes in wrong:
            assert (await decline(**changes))[0] == 404
        assert cluster.held != {}
        assert await decline() == (200, {"declined": "a1"})
        assert cluster.held == {}
        assert (await decline())[0] == 404
