"""What a stage holds and cleans up when its client leaves is done under every server."""

from __future__ import annotations

from contextlib import ExitStack

import anyio
import anyio.lowlevel

from tests.hosts.servers import Host
from tests.hosts.sites import Site
from tests.leaving import app_that_stands_in
from tilert_stream.abc import Receive, Send
from tilert_stream.events import Reserved, TextDelta
from tilert_stream.scope import RequestScope
from tilert_stream.testing.apps import ScriptedApp


class Borrow:
    """A step that borrows a thing, and waits."""

    def __init__(self) -> None:
        self.standing = anyio.Event()
        self.returned: list[str] = []

    async def call(self, item: Reserved, scope: RequestScope) -> Reserved:
        scope.lease.hold("thing", self.returned.append)
        self.standing.set()
        await anyio.sleep_forever()
        return item


class Tidy:
    """A stage whose clean-up awaits, shielded, and for a bounded time."""

    def __init__(self) -> None:
        self.standing = anyio.Event()
        self.steps: list[str] = []

    async def run(self, receive: Receive[TextDelta], send: Send[TextDelta]) -> None:
        try:
            async for item in receive:
                await send(item)
                self.standing.set()
        finally:
            self.steps.append("begun")
            with anyio.move_on_after(5, shield=True):
                await anyio.lowlevel.checkpoint()
                self.steps.append("done")


async def test_dis_06_what_a_lease_holds_goes_back(host: Host) -> None:
    borrow = Borrow()
    app = ScriptedApp()
    app.service.pipeline = app.service.pipeline.insert(borrow, where="after", anchor="reserve")
    async with Site(host).serve(app) as address:
        client = address.post(stream=True)
        await borrow.standing.wait()
        client.leave()
        await address.door.until_left(1)
        assert borrow.returned == ["cancelled"]
    assert app.service.ledger.counts == {}


async def test_dis_06_a_shielded_clean_up_comes_to_its_end(host: Host) -> None:
    tidy = Tidy()
    gates = ExitStack()
    _, app = app_that_stands_in("streaming", gates)
    app.service.pipeline = app.service.pipeline.insert(tidy, where="after", anchor="detokenize")
    async with Site(host).serve(app) as address:
        with gates:
            client = address.post(stream=True)
            await tidy.standing.wait()
            client.leave()
            await address.door.until_left(1)
            assert tidy.steps == ["begun", "done"]
    assert app.service.ledger.counts == {}
