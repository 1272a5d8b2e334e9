"""A decode node's grants over HTTP: what is none, and what is used twice."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from tests.pd.cluster import LONGEST, Cluster
from tests.pd.test_cases_hand_over import ask_one, code_of, post
from tilert_engine.scripted import Script
from tilert_stream.testing import Gate


async def test_kv_09_a_grant_is_decoded_once() -> None:
    """Asked for again by its whole name: while it decodes, and when it is over."""
    again: dict[str, Any] = {"generation": 1, "first_token_id": 97, "max_tokens": 3}
    with Gate() as gate:
        cluster = Cluster(decode=[Script(before_chain=gate.pass_through)], slots=2)
        async with cluster.running():
            node = cluster.decode_apps[0].node
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask_one, cluster)
                await gate.arrival()
                again["rid"] = node.requests[0]
                status, answer = await post(cluster, "/pd/decode", **again)
                assert (status, code_of(answer)) == (409, "request_in_use")
                gate.open()
            await cluster.idle()
            status, answer = await post(cluster, "/pd/decode", **again)
            assert (status, code_of(answer)) == (410, "kv_grant_gone")
            assert cluster.held == {}


async def test_kv_02_kv_09_a_grant_of_an_earlier_attempt_is_good_for_nothing() -> None:
    """The request has been reserved anew: what names the first grant is not about the second."""
    cluster = Cluster(slots=1)
    async with cluster.running():
        granted: list[int] = []
        for _ in range(2):
            status, answer = await post(cluster, "/pd/reserve", rid="a1", max_len=9)
            assert status == 200
            granted.append(answer["generation"])
            if len(granted) == 1:
                assert (await post(cluster, "/pd/cancel", rid="a1"))[0] == 200
        stale = {"rid": "a1", "generation": granted[0]}
        status, answer = await post(cluster, "/pd/renew", **stale)
        assert (status, code_of(answer)) == (410, "kv_grant_gone")
        status, answer = await post(
            cluster, "/pd/decode", **stale, first_token_id=97, max_tokens=3, timeout_s=5
        )
        assert (status, code_of(answer)) == (410, "kv_grant_gone")
        assert cluster.decode_apps[0].node.requests == ["a1"], "the second one's slot is untouched"
        assert (await post(cluster, "/pd/cancel", rid="a1"))[0] == 200
        assert cluster.held == {}


async def test_dis_04_a_cache_that_never_comes_frees_its_slot_by_the_nodes_own_limit() -> None:
    """Whatever becomes of the router meanwhile."""
    cluster = Cluster(slots=1)
    async with cluster.running():
        _, granted = await post(cluster, "/pd/reserve", rid="a1", max_len=9)
        order = {"rid": "a1", "generation": granted["generation"], "first_token_id": 97}
        status, answer = await post(cluster, "/pd/decode", **order, max_tokens=3, timeout_s=0.05)
        assert (status, code_of(answer)) == (504, "kv_timeout")
        assert cluster.held == {}
        assert (await cluster.ask(max_tokens=3)).text == "abc"


@pytest.mark.parametrize("length", [0, -1, LONGEST + 1, "8", 8.5, True, None])
async def test_kv_05_a_length_that_is_none_claims_no_slot(length: object) -> None:
    cluster = Cluster(slots=1)
    async with cluster.running():
        status, answer = await post(cluster, "/pd/reserve", rid="a1", max_len=length)
        assert status == 400
        assert code_of(answer) in ("invalid_value", "context_length_exceeded")
        assert cluster.held == {}
        assert (await post(cluster, "/pd/reserve", rid="a1", max_len=LONGEST))[0] == 200
        assert (await post(cluster, "/pd/cancel", rid="a1"))[0] == 200
