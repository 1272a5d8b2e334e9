"""Our prefill node and router before a stock decode server of TileRT's."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio
import orjson
import pytest
import torch

from tests.engine.glm.asking import Answer, decode, stored
from tests.engine.glm.make_greedy import QUESTIONS
from tests.pd.cluster import LIMIT, Node, read
from tilert_engine.layouts.mla_nsa import MlaNsaLayout
from tilert_engine.layouts.mla_nsa_cache import WirePlanes
from tilert_stream.config import PrefillConfig, RouterConfig, ServeConfig
from tilert_stream.events import Limits
from tilert_stream.http.client import HTTPClient
from tilert_stream.serve import router
from tilert_stream.serve.front import Front
from tilert_stream.serve.models import Model, load_model
from tilert_stream.serve.prefill import build_prefill
from tilert_stream.serve.router import build_router
from tilert_stream.testing.tilert_server import NixlReceiver, Received, StockServer
from tilert_transports.nixl_binding import installed
from tilert_transports.registry import load

pytestmark = pytest.mark.skipif(not installed(), reason="no NIXL wheel")
if installed():
    load("nixl")  # before any event loop runs: importing reads files

CONFIG = ServeConfig(model="tiny-glm5", max_seq_len=256, threads=1)
ROWS = 192
"""Fewer than prefill's: its strides follow from the hello."""


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model(CONFIG, slots=1)


@pytest.fixture(scope="module")
def expected() -> Answer:
    """What the undivided model says, with an fp8 cache."""
    return next(answer for answer in stored() if answer.cache)


def tensor(layers: Sequence[bytes], layout: MlaNsaLayout, plane: int) -> torch.Tensor:
    flat = torch.frombuffer(bytearray().join(layers), dtype=torch.uint8)
    return flat.view(len(layers), -1, layout.planes[plane].row_bytes)


@dataclass
class Stock:
    """A stock server, around the model's own decode engine."""

    model: Model
    name: str
    receiver: Callable[[str, int], NixlReceiver] = NixlReceiver

    def __post_init__(self) -> None:
        layout = self.model.layout
        assert isinstance(layout, MlaNsaLayout)
        self.layout = layout
        self.received: list[Received] = []
        self.server = StockServer(
            partial(self.receiver, self.name),
            layout.version,
            layers=layout.model.layers,
            row_bytes=layout.planes[0].row_bytes,
            rows=ROWS,
            decode=self.decode,
            gap=4096,
        )

    def decode(self, received: Received, first: int, max_tokens: int) -> list[int]:
        self.received.append(received)
        sections = (received.sections.kv, received.sections.pe, received.sections.ki)
        planes = WirePlanes(
            *(tensor(each, self.layout, plane) for plane, each in enumerate(sections))
        )
        kv = self.layout.imported(planes)
        return decode(self.model.decode, kv, first, Limits(max_tokens))[0]


@dataclass
class Cluster:
    """A router and a prefill node of ours, a decode server of TileRT's."""

    stock: Stock
    origin: Any
    client: HTTPClient
    prefill: Node
    prefill_app: Any

    async def ask(self, **fields: Any) -> Any:
        body = {
            "messages": [{"role": "user", "content": QUESTIONS[0]}],
            "ignore_eos": True,
            "temperature": 0,
            **fields,
        }
        async with self.client.request(
            self.origin, "POST", "/v1/chat/completions", (), orjson.dumps(body)
        ) as response:
            return await read(response)


@asynccontextmanager
async def cluster(
    model: Model,
    front: Front,
    stock: Stock,
    monkeypatch: pytest.MonkeyPatch,
    *,
    transport: str = "nixl",
    **options: Any,
) -> AsyncGenerator[Cluster]:
    def loaded(_config: RouterConfig) -> Front:
        return front

    monkeypatch.setattr(router, "load_front", loaded)
    async with AsyncExitStack() as stack:
        stack.callback(stock.server.close)
        stack.enter_context(anyio.fail_after(LIMIT))
        tasks = await stack.enter_async_context(anyio.create_task_group())
        app = build_prefill(PrefillConfig(port=0, transport=transport), model)
        prefill, http = Node(app), Node(stock.server)
        for node in (prefill, http):
            await node.start(tasks)
            stack.callback(node.server.drain)
        config = RouterConfig(
            model="tiny-glm5",
            prefill_nodes=(f"http://127.0.0.1:{prefill.port}",),
            decode_nodes=(f"127.0.0.1:{stock.server.port}:{http.port}",),
            **options,
        )
        routing = Node(build_router(config))
        await routing.start(tasks)
        stack.callback(routing.server.drain)
        client = stack.enter_context(HTTPClient())
        yield Cluster(stock, routing.origin, client, prefill, app)


async def test_a_stock_server_decodes_what_our_prefill_hands_over(
    model: Model, front: Front, expected: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    stock = Stock(model, "stock-decode:1")
    text = front.tokenizer.decode(expected.ids, skip_special_tokens=True)
    async with cluster(model, front, stock, monkeypatch) as there:
        for stream in (False, True, True):
            answer = await there.ask(max_tokens=len(expected.ids), stream=stream)
            assert (answer.text, answer.finish_reason) == (text, "length")
            assert answer.whole
    assert [list(request) for request in stock.server.requests] == [
        ["rid", "rank", "seq_len", "last_prompt_token", "sampling"]
    ] * 3
    first = stock.received[0]
    assert (first.seq_len, first.last_prompt_token) == (
        len(expected.prompt),
        expected.prompt[-1],
    )
    orders = [fields for path, fields in stock.server.calls if path == "/pd/decode"]
    assert [order["rid"] for order in orders] == [
        request["rid"] for request in stock.server.requests
    ]
    assert not any("generation" in order for order in orders)


async def test_a_prefill_node_without_nixl_says_so_before_anything_is_computed(
    model: Model, front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    stock = Stock(model, "stock-decode:2")
    async with cluster(model, front, stock, monkeypatch, transport="tcp") as there:
        answer = await there.ask(max_tokens=4)
        assert (answer.status, answer.error) == (502, "upstream_failed")
    assert stock.server.requests == []
    assert "/pd/decode" not in [path for path, _ in stock.server.calls]
