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
