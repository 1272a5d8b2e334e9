"""The client leaves in every phase while KV caches travel by NIXL."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from tests.pd.cluster import LONGEST, Cluster
from tests.pd.layouts import SlowlyPacked
from tests.pd.test_cases_failing import leave_it
from tilert_engine.scripted import Script
from tilert_stream.testing import Gate
from tilert_transports.nixl_binding import installed

pytestmark = pytest.mark.skipif(not installed(), reason="no NIXL wheel")


@pytest.mark.parametrize("place", ["before_chunk", "pack", "before_import", "before_chain"])
async def test_dis_04_left_over_nixl(place: str) -> None:
    with Gate() as gate:
        hooks: dict[str, Any] = {} if place == "pack" else {place: gate.pass_through}
        script = Script(**hooks)
        layout = SlowlyPacked(gate) if place == "pack" else None
        cluster = Cluster(
            prefill=script, decode=[script], slots=1, transport="nixl", prefill_layout=layout
        )
        async with cluster.running():
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(leave_it, cluster, True)
                await gate.arrival()
                tasks.cancel_scope.cancel()
            gate.open()
            await cluster.idle()
            for _ in range(2):
                assert (await cluster.ask(max_tokens=LONGEST - 3)).whole
            await cluster.idle()
