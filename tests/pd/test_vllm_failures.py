"""What goes wrong between vLLM's connector and decode nodes that speak ``tilert-pd``."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import closing
from types import ModuleType
from typing import Any, NoReturn

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from tests.engine.glm.asking import stored
from tests.nodes.glm_vllm import GlmVllm
from tests.nodes.vllm_scheduler import Output
from tests.pd.cluster import LIMIT, Node
from tests.pd.test_tilert_server import Stock
from tests.pd.tilert_cluster import TilertCluster, new_rid
from tests.pd.vllm_cluster import vllm_cluster
from tilert_engine.layouts.mla_nsa import MlaNsaLayout
from tilert_engine.layouts.mla_nsa_model import MlaNsaModel
from tilert_stream.config import DecodeConfig, ServeConfig
from tilert_stream.nodes.hand_over.destination import Destination, params_for
from tilert_stream.serve.decode import build_tilert
from tilert_stream.serve.models import Model, load_model
from tilert_stream.testing.tilert_sender import NixlWriter
from tilert_transports.nixl import NixlTransport
from tilert_transports.nixl_binding import installed
from tilert_transports.registry import load

pytestmark = [
    pytest.mark.skipif(not installed(), reason="no NIXL wheel"),
    pytest.mark.usefixtures("loaded_front"),
]
if installed():
    load("nixl")  # before any event loop runs: importing reads files

PROMPT = next(answer.prompt for answer in stored() if answer.cache and len(answer.prompt) > 128)


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model(ServeConfig(model="tiny-glm5", max_seq_len=256, threads=1), slots=1)


@pytest.fixture
def vllm(request: pytest.FixtureRequest, plugin: ModuleType, model: Model) -> Iterator[GlmVllm]:
    """With the ``kv_connector_extra_config`` that the test gives it."""
    with closing(GlmVllm(plugin, model.prefill, "fp8_ds_mla", request.param)) as made:
        yield made


def configured(extra: Mapping[str, object]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("vllm", [pytest.param(extra, id="")], indirect=True)


@pytest.mark.parametrize(
    ("vllm", "said"),
    [
        ({"transport": "tcp"}, "transport is 'tcp', and such a server is handed to over nixl"),
        ({"transport": "nixl", "max_seq_len": 64}, "seq_len is 135, above max_seq_len 64"),
    ],
    indirect=["vllm"],
    ids=["transport", "length"],
)
async def test_pd_14_a_hand_over_that_fails_ends_its_request_at_once(
    vllm: GlmVllm, model: Model, said: str
) -> None:
    config = DecodeConfig(
        http_port=0, ctrl_port=0, slots=1, pd_dialect="tilert-pd", transport="nixl"
    )
    app, port = build_tilert(config, model)
    async with vllm_cluster(vllm, app, port) as there:
        ids, error = await there.ask(PROMPT, 4)
    assert ids == []
    assert error["code"] == "decode_failed"
    assert error["message"].startswith("the decode node gave the request up: prefill gave up: ")
    assert said in error["message"]


@configured({"transport": "nixl"})
@pytest.mark.parametrize("decode_first", [True, False])
async def test_pd_14_a_request_that_vllm_aborts_ends_at_once(
    vllm: GlmVllm, model: Model, decode_first: bool
) -> None:
    cluster = TilertCluster(model, NixlWriter(f"stock-vllm:{new_rid()}"))
    rid, told = new_rid(), list[Any]()
    async with cluster.running():
        to = Destination("127.0.0.1", cluster.port.port, None, cluster.node.port)

        async def decode() -> None:
            told.append(await cluster.decode(rid, 1, 4))

        async def abort() -> None:
            name = f"cmpl-{rid}-0-0123abcd"
            await anyio.to_thread.run_sync(vllm.abort, name, params_for(to))

        async with anyio.create_task_group() as tasks:
            if decode_first:
                tasks.start_soon(decode)
                while not cluster.app.node.requests:
                    await anyio.lowlevel.checkpoint()
                await abort()
            else:
                await abort()
                await decode()
        ((ids, end),) = told
        assert ids == []
        assert end["error"] == "prefill gave up: vLLM ended the request (FINISHED_ABORTED)"
        await cluster.idle()


ONE_PROMPT = MlaNsaLayout(
    model=MlaNsaModel("tiny-glm5", 4, 1), dtype="fp8_ds_mla", max_seq_len=256
).staging_bytes(256)
"""Too little for two of them."""


@configured({"transport": "nixl", "staging_bytes": ONE_PROMPT})
async def test_pd_14_what_is_on_its_way_to_a_stock_server_stops(
    vllm: GlmVllm, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its dialect has no word for it: the connection ends without one, and memory comes back."""
    begun = threading.Semaphore(0)

    async def write(*_given: object, **_options: object) -> NoReturn:
        begun.release()
        await anyio.sleep_forever()
        raise AssertionError

    monkeypatch.setattr(NixlTransport, "write", write)
    stock = await anyio.to_thread.run_sync(Stock, model, f"stock-decode:{new_rid()}")
    http = Node(stock.server)
    rids = [new_rid(), new_rid()]
    with anyio.fail_after(LIMIT), closing(stock.server):
        async with anyio.create_task_group() as tasks:
            await http.start(tasks)
            params = params_for(Destination("127.0.0.1", stock.server.port, None, http.port))

            def prefill_and_abort(rid: str) -> None:
                vllm.prefill(f"cmpl-{rid}-0-0123abcd", PROMPT, params, end="FINISHED_ABORTED")
                begun.acquire()
                assert stock.server.busy
                vllm.step(Output())

            for rid in rids:
                await anyio.to_thread.run_sync(prefill_and_abort, rid)
                while stock.server.busy:
                    await anyio.lowlevel.checkpoint()
            while len(stock.server.calls) < len(rids):
                await anyio.lowlevel.checkpoint()
            http.server.drain()
    assert [request["rid"] for request in stock.server.requests] == rids
    assert stock.server.arrived == {}
    told = {"reason": "the hand-off was cancelled"}
    assert stock.server.calls == [("/pd/decline", {"rid": rid, **told}) for rid in rids]


@configured({"transport": "nixl", "sync_send": True})
def test_kv_06_a_stock_server_of_another_dtype_is_not_written_to(
    vllm: GlmVllm, caplog: pytest.LogCaptureFixture
) -> None:
    other = load_model(
        ServeConfig(model="tiny-glm5", max_seq_len=256, threads=1, kv_cache_dtype="bf16")
    )
    stock = Stock(other, f"stock-decode:{new_rid()}")
    with closing(stock.server):
        to = Destination("127.0.0.1", stock.server.port)
        vllm.prefill(f"cmpl-{new_rid()}-0-0123abcd", PROMPT, params_for(to))
    assert stock.server.requests == []
    assert (
        "the TileRT decode node does not fit: layout_version: ours is 200400, theirs 200440; give"
        " both nodes the same --model, --kv-cache-dtype" in caplog.text
    )
