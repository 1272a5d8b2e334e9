"""A client that ends its sending side behind the request: no server tells it from one that left."""

from __future__ import annotations

from contextlib import ExitStack

from tests.hosts.servers import Host
from tests.hosts.sites import Site
from tests.leaving import InEngine
from tilert_stream.testing.apps import ScriptedApp


async def test_dis_08_half_closed_means_gone(host: Host) -> None:
    gates = ExitStack()
    place = InEngine("before_chain", 5, gates)
    app = ScriptedApp(place.script, slots=1)
    async with Site(host).serve(app) as address:
        with gates:
            for number, stream in enumerate((True, False)):
                place.close()
                client = address.post(stream=stream)
                await place.arrival()
                client.end_output()
                await address.door.until_left(number + 1)
                assert app.service.ledger.counts == {}
                rest = await client.read_all()
                assert b"[DONE]" not in rest
                assert stream or not rest
                place.open()
