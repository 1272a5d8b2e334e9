"""Clients that leave under every server and in every kind of app: all they held comes back.

The same places to be stuck in as on the project's own server. When the app has let go of a request,
nothing of it may be held any more.
"""

from __future__ import annotations

from contextlib import ExitStack
from itertools import product

import anyio
import pytest

from tests.hosts.sites import Address, Site
from tests.leaving import ENGINE, SENT_BY_THEN, STAGES, How, InEngine, app_that_stands_in
from tilert_stream.testing.apps import ScriptedApp
from tilert_stream.trace import TraceEvent

WAYS: tuple[tuple[bool, How], ...] = tuple(product((True, False), ("fin", "rst")))
"""Streamed or plain, and how the client goes."""


async def assert_served(address: Address) -> None:
    client = address.post(stream=True)
    answer = await client.read_all()
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"data: [DONE]" in answer


@pytest.mark.parametrize("phase", [*ENGINE, *STAGES])
async def test_dis_02_leaving_in_every_phase(site: Site, phase: str) -> None:
    gates = ExitStack()
    place, app = app_that_stands_in(phase, gates)
    async with site.serve(app) as address:
        with gates:
            for stream, how in WAYS:
                place.close()
                client = address.post(stream=stream)
                await place.arrival()
                if stream and phase in SENT_BY_THEN:
                    await client.until(b'"text":"t')
                left = address.door.left
                client.leave(how)
                await address.door.until_left(left + 1)
                assert app.service.ledger.counts == {}, (stream, how)
                place.open()
                await assert_served(address)
    assert app.service.ledger.counts == {}
    assert app.decode_engine.busy == {}


async def test_dis_02_leaving_the_queue(site: Site) -> None:
    """Who waits for the slot that another has: the other one does not notice."""
    gates = ExitStack()
    place = InEngine("before_chain", 5, gates)
    in_line = [anyio.Event() for _ in (None, *WAYS)]
    coming = iter(in_line)

    def trace(event: TraceEvent) -> None:
        if (event.name, event.phase) == ("reserve", "started"):
            next(coming).set()

    app = ScriptedApp(place.script, slots=1, trace=trace)
    async with site.serve(app) as address:
        with gates:
            place.close()
            first = address.post(stream=True)
            await place.arrival()
            held = dict(app.service.ledger.counts)
            assert held
            for number, (stream, how) in enumerate(WAYS):
                client = address.post(stream=stream)
                await in_line[number + 1].wait()
                assert app.service.ledger.counts != held
                client.leave(how)
                await address.door.until_left(number + 1)
                assert app.service.ledger.counts == held, (stream, how)
            place.open()
            assert b"data: [DONE]" in await first.read_all()
    assert app.service.ledger.counts == {}
    assert app.decode_engine.busy == {}
