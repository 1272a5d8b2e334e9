"""What a router knows of its prefill nodes' KV caches, and when it asks."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import orjson
import pytest

from tilert_stream.cluster.janitor import Janitor
from tilert_stream.cluster.pool import Pool
from tilert_stream.cluster.prefill_call import PrefillCall
from tilert_stream.cluster.prefill_layouts import PrefillLayouts
from tilert_stream.http import Server, ServerSettings
from tilert_stream.http.client import HTTPClient, Origin, UpstreamError, UpstreamInvalid

SETTINGS = ServerSettings(port=0, lifespan="off", access_log=False, drain_timeout=5)
GQA: dict[str, Any] = {"kind": "gqa", "layers": 4, "rotated": True}
OTHER: dict[str, Any] = {**GQA, "layers": 5}


class Models:
    """A server that lists its models."""

    def __init__(self, layout: object = None, *, status: int = 200) -> None:
        self.layout = layout
        self.status = status
        self.asked: list[str] = []
        self.body: bytes | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.asked.append(scope["path"])
        model: dict[str, object] = {"id": "m", "object": "model"}
        if self.layout is not None:
            model["kv_layout"] = self.layout
        body = self.body or orjson.dumps({"data": [{"id": "another"}, model]})
        headers = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


class Known:
    def __init__(self, pool: Pool[PrefillCall], layouts: PrefillLayouts, janitor: Janitor) -> None:
        self.pool = pool
        self.layouts = layouts
        self._janitor = janitor

    async def told(self) -> Any:
        """What is known once everybody has answered."""
        while self._janitor.busy:
            await anyio.lowlevel.checkpoint()
        return self.layouts.common


@asynccontextmanager
async def prefills(*apps: Models) -> AsyncGenerator[Known]:
    with anyio.fail_after(20), HTTPClient() as client:
        async with anyio.create_task_group() as tasks:
            servers = [Server(app, SETTINGS) for app in apps]
            nodes: list[tuple[str, PrefillCall]] = []
            for number, server in enumerate(servers):
                addresses: list[tuple[str, int]] = await tasks.start(server.serve)
                origin = Origin.parse(f"http://127.0.0.1:{addresses[0][1]}", label="prefill")
                nodes.append((f"p{number}", PrefillCall(client, origin, model="m")))
            pool = Pool("prefill", nodes)
            async with Janitor() as janitor:
                yield Known(pool, PrefillLayouts(pool, janitor), janitor)
            for server in servers:
                server.cut()


async def test_nothing_is_known_before_it_is_asked() -> None:
    async with prefills(Models(GQA)) as known:
        assert known.layouts.common is None
        known.layouts.ask()
        known.layouts.ask()
        assert await known.told() == GQA


@pytest.mark.parametrize(
    ("told", "common"),
    [((GQA, GQA), GQA), ((GQA, OTHER), None), ((GQA, None), None), ((None, None), None)],
)
async def test_it_is_what_all_nodes_make(told: tuple[object, ...], common: object) -> None:
    async with prefills(*map(Models, told)) as known:
        known.layouts.ask()
        assert await known.told() == common


async def test_a_node_that_says_nothing_of_it_is_asked_once() -> None:
    node = Models()
    async with prefills(node) as known:
        known.layouts.ask()
        await known.told()
        known.layouts.meet(known.pool.members[0])
        await known.told()
    assert node.asked == ["/v1/models"]


async def test_a_node_that_did_not_answer_is_asked_again_when_it_is_met() -> None:
    node = Models(GQA, status=503)
    async with prefills(node) as known:
        known.layouts.ask()
        assert await known.told() is None
        node.status = 200
        known.layouts.meet(known.pool.members[0])
        assert await known.told() == GQA


async def test_after_a_misfit_all_is_asked_anew() -> None:
    node = Models(GQA)
    async with prefills(node) as known:
        known.layouts.ask()
        await known.told()
        node.layout = OTHER
        known.layouts.doubt()
        assert known.layouts.common is None
        assert await known.told() == OTHER
        node.layout = GQA
        await known.layouts.renew()
        assert known.layouts.common == GQA
        node.status = 500
        await known.layouts.renew()
        assert known.layouts.common is None


@pytest.mark.parametrize(
    "body",
    [b"[]", b"no json", b'{"data":{}}', b'{"data":[{"id":"m","kv_layout":[]}]}'],
)
async def test_what_cannot_be_read_is_said(body: bytes) -> None:
    node = Models()
    node.body = body
    async with prefills(node) as known:
        with pytest.raises(UpstreamInvalid, match="the models of prefill cannot be read"):
            await known.pool.members[0].node.layout()


@pytest.mark.parametrize("value", [1.5, None, [], {}])
async def test_a_field_of_another_type_is_refused(value: object) -> None:
    async with prefills(Models({"layers": value})) as known:
        with pytest.raises(UpstreamInvalid, match=r"kv_layout\.layers is"):
            await known.pool.members[0].node.layout()


async def test_a_server_that_lists_no_model() -> None:
    node = Models()
    node.body = b'{"data":[]}'
    async with prefills(node) as known:
        assert await known.pool.members[0].node.layout() is None
        node.status = 404
        with pytest.raises(UpstreamError, match="does not list its models"):
            await known.pool.members[0].node.layout()
