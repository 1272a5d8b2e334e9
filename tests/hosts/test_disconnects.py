"""Clients that leave at random under every server: all comes back, and nobody makes a noise of it.

Sixty of them in the ordinary run, two thousand in the soak; and twenty while errors are answered.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence

import pytest

from tests.hosts.servers import Host
from tests.hosts.sites import Site
from tests.visits import crowd, whole_answers
from tilert_engine.scripted import Script, echo
from tilert_stream.errors import EngineFault
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


def _fail_soon_or_later(prompt_ids: Sequence[int], index: int) -> int:
    if bytes(prompt_ids) == b"soon" or index == 5:
        raise EngineFault("the cache is full")
    return echo(prompt_ids, index)


UVICORN_ON_A_CUT = "ASGI callable returned without completing response."


async def test_dis_10_leaving_beside_errors(host: Host, caplog: pytest.LogCaptureFixture) -> None:
    chance = random.Random(10)
    app = ScriptedApp(Script(token=_fail_soon_or_later), slots=SLOTS)
    async with Site(host).serve(app) as address:
        for _ in range(20):
            client = address.post(
                stream=chance.random() < 0.7, prompt=chance.choice(["soon", "later"])
            )
            if chance.random() < 0.7:
                await client.read()
            client.leave(chance.choice(["fin", "rst"]))
        await whole_answers(address.port, 1)
        await address.door.until_empty()
    assert app.service.ledger.counts == {}
    noise = {
        record.getMessage()
        for record in caplog.records
        if record.levelno > logging.INFO and record.name != "tilert_stream.asgi.response"
    }
    assert noise <= ({UVICORN_ON_A_CUT} if host.name.startswith("uvicorn") else set())
