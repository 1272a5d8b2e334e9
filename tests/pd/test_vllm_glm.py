"""vLLM hands caches of MLA with an NSA indexer over: to our decode node, and to TileRT's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from types import ModuleType

import pytest

from tests.engine.glm.asking import decode, prefill, stored
from tests.nodes.glm_vllm import GlmVllm
from tests.pd.test_tilert_server import Stock, cluster
from tests.pd.vllm_cluster import ask_ids, vllm_cluster
from tilert_engine.layouts.mla_nsa import MlaNsaLayout
from tilert_engine.layouts.mla_nsa_cache import CachedKV
from tilert_engine.layouts.mla_nsa_model import CacheDtype
from tilert_stream.config import DecodeConfig, ServeConfig
from tilert_stream.events import Limits
from tilert_stream.serve.decode import build_decode, build_tilert
from tilert_stream.serve.front import Front
from tilert_stream.serve.models import Model, load_model
from tilert_transports.nixl_binding import installed
from tilert_transports.registry import load

pytestmark = pytest.mark.usefixtures("loaded_front")
needs_nixl = pytest.mark.skipif(not installed(), reason="no NIXL wheel")
if installed():
    load("nixl")  # before any event loop runs: importing reads files

STORED = next(answer for answer in stored() if answer.cache and len(answer.prompt) > 128)
"""Its prompt takes three blocks."""
DTYPES: list[CacheDtype] = ["fp8_ds_mla", "bf16"]
STEPS = [{}, {"chunk": 50}, {"chunk": 50, "preempted": True}]
"""In one step; in chunks, with a hit of the prefix cache; preempted, with other blocks."""


@pytest.fixture(scope="module", params=DTYPES)
def model(request: pytest.FixtureRequest) -> Model:
    config = ServeConfig(
        model="tiny-glm5", max_seq_len=256, threads=1, kv_cache_dtype=request.param
    )
    return load_model(config, slots=1)


@pytest.fixture(scope="module")
def undivided(model: Model) -> list[int]:
    """What the model says in one piece."""
    output = prefill(model.prefill, STORED.prompt, Limits(1))
    assert isinstance(output.kv, CachedKV)
    kv = layout_of(model).imported(output.kv.planes)
    ids, _ = decode(model.decode, kv, output.first.ids[0], Limits(len(STORED.ids)))
    if layout_of(model).dtype == STORED.cache:
        STORED.agrees(ids)
    return ids


def layout_of(model: Model) -> MlaNsaLayout:
    assert isinstance(model.layout, MlaNsaLayout)
    return model.layout


STOCK: dict[str, object] = {
    "tilert_ctrl_port": 5556,
    "tilert_model": "tiny-glm5",
    "tilert_max_seq_len": 256,
    "tilert_transport": "nixl",
    "tilert_sync_send": False,
}
"""As the configuration of TileRT's own connector says it."""


@pytest.fixture
def vllm(request: pytest.FixtureRequest, plugin: ModuleType, model: Model) -> Iterator[GlmVllm]:
    """With the ``kv_connector_extra_config`` that the test gives it."""
    with closing(GlmVllm(plugin, model.prefill, layout_of(model).dtype, request.param)) as made:
        yield made


def configured(extra: Mapping[str, object]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("vllm", [pytest.param(extra, id="")], indirect=True)


@configured({"transport": "tcp"})
async def test_our_decode_node_says_what_the_undivided_model_says(
    vllm: GlmVllm, model: Model, undivided: list[int]
) -> None:
    config = DecodeConfig(http_port=0, ctrl_port=0, slots=1, transport="tcp")
    app, port = build_decode(config, model)
    async with vllm_cluster(vllm, app, port) as there:
        for steps in STEPS:
            there.node.steps = steps
            assert await there.ask(STORED.prompt, len(undivided)) == (undivided, {})
    assert vllm.computed == [135, 7, 7, 7]


@needs_nixl
@configured(STOCK)
async def test_our_decode_node_of_tilerts_dialect_says_the_same(
    vllm: GlmVllm, model: Model, undivided: list[int]
) -> None:
    config = DecodeConfig(
        http_port=0, ctrl_port=0, slots=1, transport="nixl", pd_dialect="tilert-pd"
    )
    app, port = build_tilert(config, model)
    async with vllm_cluster(vllm, app, port) as there:
        for steps in STEPS:
            there.node.steps = steps
            assert await there.ask(STORED.prompt, len(undivided)) == (undivided, {})


@needs_nixl
@configured(STOCK)
async def test_a_stock_server_gets_what_our_own_prefill_node_hands_over(
    vllm: GlmVllm,
    model: Model,
    front: Front,
    undivided: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = Stock(model, f"stock-decode:own-{layout_of(model).version}")
    async with cluster(model, front, own, monkeypatch) as here:
        told = await ask_ids(here.client, here.origin, STORED.prompt, len(undivided))
        assert told == (undivided, {})
    stock = Stock(model, f"stock-decode:vllm-{layout_of(model).version}")
    with closing(stock.server):
        async with vllm_cluster(vllm, stock.server, stock.server) as there:
            for steps in STEPS:
                there.node.steps = steps
                assert await there.ask(STORED.prompt, len(undivided)) == (undivided, {})
    assert stock.received == own.received * 3
    orders = [fields["rid"] for path, fields in stock.server.calls if path == "/pd/decode"]
    assert orders == [request["rid"] for request in stock.server.requests]
