"""``decode --pd-dialect tilert-pd``: TileRT's prefill hands over to it, its router drives it."""

from __future__ import annotations

import socket
from dataclasses import replace
from typing import Any, NoReturn

import anyio
import anyio.lowlevel
import anyio.to_thread
import orjson
import pytest

from tests.engine.glm.asking import Answer, stored
from tests.engine.glm.make_greedy import QUESTIONS
from tests.pd.cluster import Node, read
from tests.pd.tilert_cluster import Computed, TilertCluster, new_rid, version_of
from tilert_stream.config import DecodeConfig, RouterConfig, ServeConfig
from tilert_stream.errors import ConfigError
from tilert_stream.nodes import tilert_port
from tilert_stream.serve.decode import build_tilert
from tilert_stream.serve.front import Front
from tilert_stream.serve.models import Model, load_model
from tilert_stream.serve.router import build_router
from tilert_stream.testing.pd_nodes import ScriptedPrefillNode
from tilert_stream.testing.tilert_sender import NixlWriter
from tilert_transports.control.tilert_pd import normalise_rid
from tilert_transports.nixl_binding import installed
from tilert_transports.registry import load

pytestmark = pytest.mark.skipif(not installed(), reason="no NIXL wheel")
if installed():
    load("nixl")  # before any event loop runs: importing reads files

TIMING = ["wire_wait", "convert", "inject", "decode", "finish_reason"]
"""As TileRT's decode node has it; what its engine has counted follows."""

CONFIG = ServeConfig(model="tiny-glm5", max_seq_len=256, threads=1)


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model(CONFIG, slots=2)


@pytest.fixture(scope="module")
def writer() -> NixlWriter:
    return NixlWriter("stock-vllm:1")


@pytest.fixture(scope="module")
def expected() -> Answer:
    """What the undivided model says, with an fp8 cache."""
    return next(answer for answer in stored() if answer.cache)


@pytest.fixture(scope="module")
def computed(model: Model, expected: Answer) -> Computed:
    made = Computed.of(model, expected.prompt)
    assert made.first == expected.ids[0]
    return made


@pytest.fixture
def cluster(model: Model, writer: NixlWriter) -> TilertCluster:
    return TilertCluster(model, writer)


@pytest.mark.parametrize("kv_first", [True, False])
async def test_a_stock_prefill_and_a_stock_router(
    cluster: TilertCluster, computed: Computed, expected: Answer, kv_first: bool
) -> None:
    async with cluster.running():
        for _ in range(3):
            rid = new_rid()
            assert (await cluster.call("GET", "/decode_status"))[1]["status"] == "idle"
            async with anyio.create_task_group() as tasks:
                if kv_first:
                    await cluster.hand_over(rid, computed)
                else:
                    tasks.start_soon(cluster.hand_over, rid, computed)
                ids, done = await cluster.decode(rid, computed.first, len(expected.ids))
                expected.agrees(ids)
                assert list(done) == ["done", "n", "seq_len", "finish_reason", "timing_ms"]
                assert list(done["timing_ms"])[:5] == TIMING
                assert done["timing_ms"]["finish_reason"] == done["finish_reason"]
                assert done["done"] is True
                assert (done["n"], done["seq_len"]) == (len(expected.ids), len(expected.prompt))
                assert done["finish_reason"] == "length"
            await cluster.idle()
            assert cluster.gauges == (4, 0)
    (hello, *_) = cluster.sender.hellos
    assert list(hello) == [
        "magic",
        "layout_version",
        "transport",
        "max_seq_len",
        "busy",
        "nixl_meta",
        "nixl_dev",
        "kv_base",
        "pe_base",
        "ki_base",
    ]
    assert hello["max_seq_len"] == 256


async def test_an_answer_that_is_not_streamed_is_one_object(
    cluster: TilertCluster, computed: Computed, expected: Answer
) -> None:
    rid = new_rid()
    async with cluster.running():
        await cluster.hand_over(rid, computed)
        order = cluster.order(rid, computed.first, 9)
        status, answer = await cluster.call("POST", "/pd/decode", **order)
        assert (status, answer["rid"], answer["token_ids"]) == (200, rid, expected.ids[:9])
        assert answer["seq_len"] == len(expected.prompt)
        assert list(answer["timing_ms"])[:5] == TIMING
        assert answer["timing_ms"]["finish_reason"] == "length"


async def test_the_engine_is_told_the_prompts_real_last_token(
    model: Model, writer: NixlWriter, computed: Computed
) -> None:
    told: list[int] = []

    class Told:
        """The model's engine, and what TileRT's MTP begins with."""

        def __init__(self) -> None:
            self.slots = model.decode.slots
            self.max_seq_len = model.decode.max_seq_len
            self.open = model.decode.open
            self.advance = model.decode.advance
            self.close = model.decode.close

        def told(self, kv: object, last_token: int) -> object:
            told.append(last_token)
            return kv

    class Served:
        front, layout, prefill, decode = model.front, model.layout, model.prefill, Told()

    cluster = TilertCluster(Served(), writer)
    async with cluster.running():
        rid = new_rid()
        await cluster.hand_over(rid, computed)
        await cluster.decode(rid, computed.first, 4)
        await cluster.idle()
    assert told == [computed.prompt[-1]]
    assert told != [0]


@pytest.mark.parametrize("path", ["/pd/reserve", "/pd/renew", "/nothing"])
async def test_nothing_can_be_reserved(cluster: TilertCluster, path: str) -> None:
    async with cluster.running():
        assert await cluster.call("POST", path, rid="a", max_len=3) == (
            404,
            {"detail": "Not Found"},
        )


async def test_a_busy_node_refuses(
    cluster: TilertCluster, computed: Computed, expected: Answer
) -> None:
    async with cluster.running(), anyio.create_task_group() as tasks:
        rids = [new_rid() for _ in range(2)]
        for rid in rids:
            tasks.start_soon(cluster.decode, rid, computed.first, 8)
        while len(cluster.app.node.requests) < 2:
            await anyio.lowlevel.checkpoint()
        assert (await cluster.call("GET", "/decode_status"))[1]["status"] == "busy"
        order = cluster.order(new_rid(), computed.first, 8)
        status, answer = await cluster.call("POST", "/pd/decode", **order)
        assert (status, answer["code"]) == (429, "slots_busy")
        for rid in rids:
            await cluster.hand_over(rid, computed)
        await cluster.idle()


async def test_dis_04_a_cancel_ends_the_wait_for_a_cache_that_comes_too_late(
    cluster: TilertCluster, computed: Computed
) -> None:
    async with cluster.running():
        rid = new_rid()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(cluster.decode, rid, computed.first, 8)
            while not cluster.app.node.requests:
                await anyio.lowlevel.checkpoint()
            assert await cluster.call("POST", "/pd/cancel", rid=rid) == (200, {"cancelled": rid})
        await cluster.idle()
        await cluster.hand_over(rid, computed)
        while cluster.gauges != (4, 0):
            await anyio.lowlevel.checkpoint()
        assert (await cluster.call("POST", "/pd/cancel", rid=rid))[0] == 404


async def test_a_cancel_before_the_request_gives_the_cache_up(
    cluster: TilertCluster, computed: Computed
) -> None:
    async with cluster.running():
        rid = new_rid()
        await cluster.hand_over(rid, computed)
        assert cluster.gauges == (3, 0)
        assert await cluster.call("POST", "/pd/cancel", rid=rid) == (200, {"cancelled": rid})
        assert cluster.gauges == (4, 0)


async def test_a_first_token_that_is_the_last_leaves_no_cache_behind(
    cluster: TilertCluster, computed: Computed
) -> None:
    async with cluster.running():
        for kv_first in (True, False):
            rid = new_rid()
            if kv_first:
                await cluster.hand_over(rid, computed)
            ids, done = await cluster.decode(rid, computed.first, 1)
            assert (ids, done["finish_reason"]) == ([computed.first], "length")
            await cluster.idle()
            if not kv_first:
                await cluster.hand_over(rid, computed)
            while cluster.gauges != (4, 0):
                await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize("waits", [True, False])
async def test_a_sender_that_dies_is_told_at_once(
    cluster: TilertCluster, computed: Computed, waits: bool
) -> None:
    async with cluster.running():
        rid = new_rid()
        answers: list[Any] = []

        async def ask() -> None:
            answers.append((await cluster.decode(rid, computed.first, 8))[1])

        async with anyio.create_task_group() as tasks:
            if waits:
                tasks.start_soon(ask)
                while not cluster.app.node.requests:
                    await anyio.lowlevel.checkpoint()
            await cluster.hand_over(rid, computed, finish=False)
            while cluster.gauges != (3, 1):
                await anyio.lowlevel.checkpoint()
            if not waits:
                await ask()
        assert answers[0]["code"] == "kv_peer_lost"
        await cluster.idle()


async def test_a_decline_is_not_for_a_cache_that_is_here(
    cluster: TilertCluster, computed: Computed, expected: Answer
) -> None:
    rid = new_rid()
    async with cluster.running():
        await cluster.hand_over(rid, computed)
        while cluster.gauges == (4, 0):
            await anyio.lowlevel.checkpoint()
        status, told = await cluster.call("POST", "/pd/decline", rid=rid, reason="too slow")
        assert (status, told["error"]["code"]) == (404, "not_found")
        ids, _ = await cluster.decode(rid, computed.first, 9)
        assert ids == expected.ids[:9]
        await cluster.idle()


async def test_a_cache_that_never_comes_times_out(cluster: TilertCluster) -> None:
    async with cluster.running():
        order = cluster.order(new_rid(), 5, 8)
        status, answer = await cluster.call("POST", "/pd/decode", **order, timeout_s=0.05)
        assert (status, answer["code"]) == (504, "kv_timeout")
        await cluster.idle()


async def test_max_tokens_is_cut_to_the_window(
    cluster: TilertCluster, computed: Computed, expected: Answer
) -> None:
    async with cluster.running():
        rid = new_rid()
        await cluster.hand_over(rid, computed)
        _, done = await cluster.decode(rid, computed.first, 100_000)
        assert (done["n"], done["finish_reason"]) == (256 - len(expected.prompt), "length")


async def test_kv_06_a_sender_of_another_layout_writes_nothing(
    cluster: TilertCluster, computed: Computed
) -> None:
    async with cluster.running():
        with pytest.raises(AssertionError, match="layout version mismatch"):
            await cluster.hand_over(new_rid(), computed, layout_version=10)
        while cluster.gauges != (4, 0):
            await anyio.lowlevel.checkpoint()


def test_what_the_dialect_cannot_carry() -> None:
    scripted = load_model(replace(CONFIG, model="bytes", engine="scripted"))
    config = DecodeConfig(pd_dialect="tilert-pd", transport="nixl")
    with pytest.raises(ConfigError, match="KV layout is 'scripted'; --pd-dialect tilert-pd"):
        build_tilert(config, scripted)
    for transport in ("auto", "tcp", "shm"):
        with pytest.raises(ConfigError, match=f"transport is '{transport}'; .* nixl or mooncake"):
            build_tilert(replace(config, transport=transport), scripted)


@pytest.mark.parametrize(
    ("options", "host"),
    [
        ({"host": "127.0.0.1"}, "127.0.0.1"),
        ({"host": "0.0.0.0"}, socket.gethostname()),
        ({"host": "::", "advertise_host": "10.0.0.7"}, "10.0.0.7"),
    ],
)
async def test_mooncake_is_spoken_as_tilerts_senders_speak_it(
    model: Model, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], host: str
) -> None:
    class Made(Exception):
        pass

    def factory(**given: object) -> NoReturn:
        raise Made(given)

    def load_it(_name: str) -> object:
        return factory

    monkeypatch.setattr(tilert_port, "load", load_it)
    config = DecodeConfig(pd_dialect="tilert-pd", transport="mooncake", ctrl_port=0, **options)
    _, port = build_tilert(config, model)
    with pytest.raises(Made) as caught:
        async with port:
            pass
    assert caught.value.args == ({"host": host, "protocol": "rdma"},)


def test_the_version_names_the_model_and_the_dtype(model: Model) -> None:
    other = load_model(replace(CONFIG, kv_cache_dtype="bf16"))
    assert version_of(other) - version_of(model) == 40


@pytest.mark.usefixtures("loaded_front")
async def test_our_router_takes_it_for_a_node_of_tilerts(
    cluster: TilertCluster, model: Model, front: Front
) -> None:
    answer = next(answer for answer in stored() if answer.cache)
    firsts: dict[tuple[int, ...], int] = {}

    async with cluster.running(), anyio.create_task_group() as tasks:

        async def compute(fields: dict[str, Any]) -> None:
            computed = await anyio.to_thread.run_sync(Computed.of, model, fields["prompt"])
            firsts[tuple(fields["prompt"])] = computed.first
            assert fields["kv_transfer_params"] == {
                "tilert_host": "127.0.0.1",
                "tilert_ctrl_port": cluster.port.port,
                "tilert_http_port": cluster.node.port,
            }
            rid = normalise_rid(f"cmpl-{fields['request_id']}-0-0123abcd")
            tasks.start_soon(cluster.hand_over, rid, computed)

        prefill = Node(
            ScriptedPrefillNode(
                first_token=lambda prompt: firsts[tuple(prompt)], before_answer=compute
            )
        )
        await prefill.start(tasks)
        config = RouterConfig(
            model="tiny-glm5",
            prefill_nodes=(f"http://127.0.0.1:{prefill.port}",),
            decode_nodes=(f"127.0.0.1:{cluster.port.port}:{cluster.node.port}",),
        )
        routing = Node(build_router(config))
        await routing.start(tasks)
        body = {
            "messages": [{"role": "user", "content": QUESTIONS[0]}],
            "max_tokens": len(answer.ids),
            "ignore_eos": True,
            "temperature": 0,
        }
        for stream in (False, True):
            async with cluster.client.request(
                routing.origin,
                "POST",
                "/v1/chat/completions",
                (),
                orjson.dumps({**body, "stream": stream}),
            ) as response:
                got = await read(response)
            assert got.text == front.tokenizer.decode(answer.ids, skip_special_tokens=True)
            assert (got.whole, got.finish_reason) == (True, "length")
        for node in (prefill, routing):
            node.server.drain()
        await cluster.idle()
        assert cluster.gauges == (4, 0)
