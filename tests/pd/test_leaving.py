"""Clients that leave a router's socket: both nodes are free while their engines still stand."""

from __future__ import annotations

import logging
import re
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from tests.leaving import Client, How
from tests.pd.cluster import Cluster
from tilert_engine.scripted import Script
from tilert_stream.testing import Gate

TEXT = re.compile(rb'"text":"([a-z]*)"')
PLACES = ["before_chunk", "before_import", "before_chain"]


async def free(cluster: Cluster) -> None:
    """Wait until the router and both nodes hold nothing but what an engine's thread is in."""
    (router,), (decode,) = cluster.routers, cluster.decode_apps
    ledgers = [router.service.ledger, decode.service.ledger, cluster.prefill_app.service.ledger]
    while decode.node.requests or any(ledger.counts for ledger in ledgers):
        await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize("how", ["fin", "rst"])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])
@pytest.mark.parametrize("place", PLACES)
async def test_dis_01_dis_02_left_while_an_engine_stands(
    place: str, stream: bool, how: How, caplog: pytest.LogCaptureFixture
) -> None:
    """One chain at most is made for nobody: the one that the engine was in."""
    caplog.set_level(logging.INFO)
    turns: list[int] = []
    with Gate() as gate:

        def hook(turn: int) -> None:
            turns.append(turn)
            if turn == (4 if place == "before_chain" else 0):
                gate.pass_through(turn)

        hooks: dict[str, Any] = {place: hook}
        script = Script(**hooks)
        cluster = Cluster(prefill=script, decode=[script], slots=1)
        async with cluster.running():
            client = Client(cluster.origin.port)
            client.post(stream=stream, prompt="abc", max_tokens=200)
            await gate.arrival()
            if stream and place != "before_chunk":
                told = b""
                while b"".join(TEXT.findall(told)) != (b"abcab" if place == PLACES[-1] else b"a"):
                    told += await client.read()
            client.leave(how)
            await free(cluster)
            seen = len(turns)
            gate.open()
            await cluster.idle()
            assert len(turns) == seen
            assert (await cluster.ask(max_tokens=3)).text == "abc"
            await cluster.idle()
    lines = [r.getMessage() for r in caplog.records if r.name == "tilert_stream.access"]
    assert not any('" 5' in line for line in lines)
    assert [r.getMessage() for r in caplog.records if r.levelno > logging.INFO] == []
