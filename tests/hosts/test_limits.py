"""What no server, or not each, lets the app know or do."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import replace

from tests.hosts.servers import Host
from tests.hosts.sites import Site
from tests.leaving import app_that_stands_in
from tilert_stream.events import Finished, TextDelta
from tilert_stream.scope import RequestScope
from tilert_stream.testing.apps import ScriptedApp


async def test_dis_08_half_closed_means_gone(host: Host) -> None:
    """No server tells a client that only ends its sending side from one that has left."""
    gates = ExitStack()
    place, app = app_that_stands_in("streaming", gates)
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


async def test_a_pipelined_request_hides_the_leaving(host: Host) -> None:
    """Servers stop to read when the next request has come: they miss the connection's end."""
    gates = ExitStack()
    place, app = app_that_stands_in("prefilling", gates)
    async with Site(host).serve(app) as address:
        with gates:
            client, *others = [address.connect() for _ in range(3)]
            client.post(stream=False, headers=())
            await place.arrival()
            held = dict(app.service.ledger.counts)
            client.post(stream=False, headers=())
            for other in others:
                # Behind the answer to another client the server has seen what was sent before.
                other.get("/health")
                assert b'{"status":"ok"}' in await other.read_all()
                client.leave()
            assert app.service.ledger.counts == held, "the engine works on for nobody"
            place.open()
            await address.door.until_empty()
    assert app.service.ledger.counts == {}


class Widen:
    """Makes a thousand characters of each: answers that no buffer holds."""

    FACTOR = 1000

    def __init__(self, _scope: RequestScope) -> None:
        pass

    def feed(self, item: TextDelta) -> Iterable[TextDelta]:
        text = "".join(character * self.FACTOR for character in item.text)
        yield replace(item, text=text, ends=tuple(end * self.FACTOR for end in item.ends))

    def finish(self, _outcome: Finished) -> Iterable[TextDelta]:
        return ()


async def test_dis_09_a_reader_that_takes_nothing_keeps_no_slot(host: Host) -> None:
    app = ScriptedApp(slots=1, max_seq_len=10_000)
    app.service.pipeline = app.service.pipeline.insert(Widen, where="after", anchor="detokenize")
    async with Site(host).serve(app) as address:
        stalled = address.connect(receive_buffer=4096)
        stalled.post(stream=True, max_tokens=8000)
        await stalled.until(b"HTTP/1.1 200")
        other = address.post(stream=False, max_tokens=1)
        assert b"200" in (await other.read_all())[:13]
        stalled.leave()
        await address.door.until_left(2)
        assert app.service.ledger.counts == {}
