"""Clients that leave at random under every server: all comes back, and nobody makes a noise of it.

Sixty of them in the ordinary run, two thousand in the soak.
"""

from __future__ import annotations

import logging

import pytest

from tests.hosts.servers import Host
from tests.hosts.sites import Site
from tests.visits import crowd, whole_answers
from tilert_engine.scripted import Script
from tilert_stream.testing.apps import ScriptedApp

SLOTS = 3


@pytest.mark.parametrize(
    "count", [60, pytest.param(2000, marks=pytest.mark.soak)], ids=["short", "soak"]
)
async def test_inv_2_dis_10_random_disconnects(
    host: Host, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    app = ScriptedApp(Script(chunks=3, chain=lambda turn: 1 + turn % 3), slots=SLOTS)
    async with Site(host).serve(app, limit=20 + count / 10) as address:
        await whole_answers(address.port, 1)
        await crowd(address.port, app, count)
        await address.door.until_empty()
        assert app.service.ledger.counts == {}
        # Every slot still serves, to the last token.
        answers = await whole_answers(address.port, SLOTS)
    assert all(b"data: [DONE]" in answer for answer in answers)
    assert app.service.ledger.counts == {}
    assert app.decode_engine.busy == {}
    assert [r.getMessage() for r in caplog.records if r.levelno > logging.INFO] == []
