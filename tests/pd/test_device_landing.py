"""Device memory at both ends, as TileRT's own parts have it. On a machine without it is skipped."""

from __future__ import annotations

from functools import partial

import anyio.to_thread
import pytest
import torch

from tests.engine.glm.asking import Answer, stored
from tests.pd.test_tilert_server import Stock, cluster
from tests.pd.tilert_cluster import Computed, TilertCluster, new_rid
from tilert_stream.config import RouterConfig, ServeConfig
from tilert_stream.serve.front import load_front
from tilert_stream.serve.models import Model, load_model
from tilert_stream.testing.tilert_sender import NixlWriter
from tilert_stream.testing.tilert_server import NixlReceiver
from tilert_transports.nixl_binding import installed
from tilert_transports.registry import load

pytestmark = [
    pytest.mark.skipif(not installed(), reason="no NIXL wheel"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
if installed():
    load("nixl")  # before any event loop runs: importing reads files

CONFIG = ServeConfig(model="tiny-glm5", max_seq_len=256, device="cuda")


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model(CONFIG, slots=2)


@pytest.fixture(scope="module")
def writer() -> NixlWriter:
    return NixlWriter("stock-vllm:vram", device=0)


@pytest.fixture(scope="module")
def expected() -> Answer:
    return next(answer for answer in stored() if answer.cache)


async def test_a_stock_sender_writes_into_our_device_memory(
    model: Model, writer: NixlWriter, expected: Answer
) -> None:
    computed = await anyio.to_thread.run_sync(Computed.of, model, expected.prompt)
    there = TilertCluster(model, writer, {"landing_memory": "device", "device": "cuda"})
    async with there.running():
        for _ in range(3):
            rid = new_rid()
            await there.hand_over(rid, computed)
            ids, done = await there.decode(rid, computed.first, len(expected.ids))
            expected.agrees(ids)
            assert done["finish_reason"] == "length"
            await there.idle()
            assert there.gauges == (4, 0)
    assert there.sender.hellos[0]["nixl_dev"] == 0


async def test_our_prefill_writes_into_a_stock_server_s_device_memory(
    model: Model, expected: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    front = load_front(RouterConfig(model="tiny-glm5"))
    stock = Stock(model, "stock-decode:vram", receiver=partial(NixlReceiver, device=0))
    text = front.tokenizer.decode(expected.ids, skip_special_tokens=True)
    async with cluster(model, front, stock, monkeypatch) as here:
        answer = await here.ask(max_tokens=len(expected.ids), stream=True)
    assert answer.whole
    assert answer.text == text
