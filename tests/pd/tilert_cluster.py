"""A decode node of the ``tilert-pd`` dialect, TileRT's prefill and router around it.

The node is the one that runs in production, on its server; prefill and router are made from what
TileRT's own say on the wire.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import anyio
import anyio.lowlevel
import anyio.to_thread
import orjson

from tests.engine.glm.asking import prefill
from tests.pd.cluster import LIMIT, Node
from tilert_engine.layouts.mla_nsa import MlaNsaLayout
from tilert_engine.layouts.mla_nsa_cache import CachedKV
from tilert_stream.config import DecodeConfig
from tilert_stream.events import Limits
from tilert_stream.http.client import HTTPClient
from tilert_stream.serve.decode import build_tilert
from tilert_stream.serve.models import Model
from tilert_stream.testing.tilert_sender import KVSections, NixlWriter, StockSender


@dataclass
class Computed:
    """A prompt, as prefill has computed it."""

    prompt: Sequence[int]
    first: int
    sections: KVSections

    @classmethod
    def of(cls, model: Model, prompt: Sequence[int]) -> Computed:
        output = prefill(model.prefill, prompt, Limits(1))
        kv = output.kv
        assert isinstance(kv, CachedKV)
        planes = (
            [layer.contiguous().cpu().numpy().tobytes() for layer in plane] for plane in kv.planes
        )
        return cls(prompt, output.first.ids[0], KVSections(*planes))


def version_of(model: Model) -> int:
    layout = model.layout
    assert isinstance(layout, MlaNsaLayout)
    return layout.version


@dataclass
class TilertCluster:
    """How it is made; ``running`` starts it."""

    model: Model
    writer: NixlWriter
    options: dict[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        options: dict[str, Any] = {"transport": "nixl", **self.options}
        config = DecodeConfig(
            http_port=0,
            ctrl_port=0,
            slots=self.model.decode.slots,
            pd_dialect="tilert-pd",
            **options,
        )
        self.app, self.port = build_tilert(config, self.model)
        self.sender = StockSender(self.writer, version_of(self.model))

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[TilertCluster]:
        with anyio.fail_after(LIMIT):
            async with anyio.create_task_group() as tasks:
                self.node = Node(self.app)
                await self.node.start(tasks)
                with HTTPClient() as self.client:
                    yield self
                self.node.server.drain()

    async def hand_over(
        self,
        rid: str,
        computed: Computed,
        *,
        finish: bool = True,
        layout_version: int | None = None,
    ) -> None:
        """What TileRT's connector does with a computed prompt."""
        sender = self.sender
        if layout_version is not None:
            sender = StockSender(self.writer, layout_version)

        def send() -> None:
            sender.send(
                ("127.0.0.1", self.port.port),
                rid,
                len(computed.prompt),
                computed.prompt[-1],
                computed.sections,
                finish=finish,
            )

        await anyio.to_thread.run_sync(send)

    async def call(self, method: str, path: str, **fields: Any) -> tuple[int, Any]:
        """A status and an object."""
        body = orjson.dumps(fields) if fields else b""
        async with self.client.request(self.node.origin, method, path, (), body) as response:
            return response.status, orjson.loads(await response.read(65536, within=LIMIT))

    def order(self, rid: str, first: int, max_tokens: int) -> dict[str, Any]:
        """What TileRT's router says to decode nodes, key for key."""
        return {
            "rid": rid,
            "first_token_id": first,
            "max_tokens": max_tokens,
            "sampling": {"temperature": 0, "ignore_eos": True},
        }

    async def decode(self, rid: str, first: int, max_tokens: int) -> tuple[list[int], Any]:
        """A streamed answer: the ids, and the last line."""
        body = orjson.dumps({**self.order(rid, first, max_tokens), "stream": True})
        async with self.client.request(
            self.node.origin, "POST", "/pd/decode", (), body
        ) as response:
            raw = await response.read(1 << 20, within=LIMIT)
            lines = [orjson.loads(line) for line in raw.splitlines()]
        if response.status != 200:
            return [], lines[0]
        return [token for line in lines[:-1] for token in line["t"]], lines[-1]

    @property
    def gauges(self) -> tuple[int, int]:
        """Landing regions: free, quarantined."""
        now = self.port.statistics()
        return now.free, now.quarantined

    @property
    def held(self) -> dict[str, Any]:
        """All that is held for requests; empty when nothing is (INV-2)."""
        found = {
            "ledger": dict(self.app.service.ledger.counts),
            "requests": self.app.node.requests,
            "slots": self.app.node.admission.statistics().busy,
        }
        return {name: what for name, what in found.items() if what}

    async def idle(self) -> None:
        """Wait until nothing is held; it comes by events, so each look only yields to them."""
        while self.held:
            await anyio.lowlevel.checkpoint()


def new_rid() -> str:
    return uuid4().hex
