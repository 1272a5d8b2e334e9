"""The harness itself: a test that fails ends, whatever it holds."""

from __future__ import annotations

import anyio
import pytest

from tests.pd.cluster import Cluster
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
