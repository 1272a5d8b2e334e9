"""The harness itself: a test that fails ends, whatever it holds, and so does a long answer."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest

from tests.pd.cluster import Cluster, ScriptedModel
from tilert_engine.scripted import Script
from tilert_stream.testing import Gate


class Failed(Exception):
    """As an assert that does not hold."""


async def test_an_assert_that_fails_before_a_closed_gate_ends_the_test() -> None:
    with Gate() as gate:
        cluster = Cluster(decode=[Script(before_chain=gate.pass_through)])
        with pytest.RaisesGroup(Failed, flatten_subgroups=True):
            async with cluster.running(), anyio.create_task_group() as tasks:
                tasks.start_soon(lambda: cluster.ask(max_tokens=4))
                await gate.arrival()
                raise Failed


async def test_a_client_that_leaves_ends_an_answer_that_only_the_window_would_end() -> None:
    """Without max_tokens the router asks for all of the window, which is to be the nodes' too."""
    window = 65536
    turns: list[int] = []
    with Gate() as gate:

        def before_chain(turn: int) -> None:
            turns.append(turn)
            gate.pass_through(turn)

        script = Script(before_chain=before_chain)
        cluster = Cluster(
            prefill_model=ScriptedModel(Script(), longest=window),
            decode_models=[ScriptedModel(script, slots=1, longest=window)],
            router_options={"max_seq_len": window},
        )
        async with cluster.running():
            async with cluster.request() as response:
                assert response.status == 200
                await gate.arrival()
            while cluster.routers[0].service.ledger.counts:
                await anyio.lowlevel.checkpoint()
            gate.open()
            await cluster.idle()
            assert len(turns) < window // 2
            assert (await cluster.ask(max_tokens=4)).whole
