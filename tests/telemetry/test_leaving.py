"""What is counted of clients that leave, at any moment: each has left, and none is an error."""

from __future__ import annotations

import anyio.lowlevel
import pytest

from tests.cases.asking import exchange
from tests.telemetry.test_app import Watched
from tilert_engine.scripted import Script

COUNT = 20


@pytest.mark.parametrize("stream", [True, False])
async def test_dis_10_leaving_at_any_moment_is_no_error(*, stream: bool) -> None:
    watched = Watched(Script(chunks=3), options={"max_seq_len": 100_000})
    async with watched.app.lifespan():
        for moment in range(COUNT):
            asked = exchange(watched.app, {"max_tokens": 90_000}, stream=stream)
            async with asked.running():
                for _ in range(moment):
                    await anyio.lowlevel.checkpoint()
                asked.leave()
        found = await watched.scrape()
        assert watched.app.service.ledger.counts == {}
    assert len(watched.lines) == COUNT
    # A stream whose head has left said 200 there.
    assert {line["status"] for line in watched.lines} <= ({200, 499} if stream else {499})
    assert {line["error"] for line in watched.lines} == {"cancelled"}
    left = {name: value for name, value in found.items() if "cancelled" in name}
    assert sum(left.values()) == COUNT
    assert not any("errors" in name or "finished" in name for name in found)
