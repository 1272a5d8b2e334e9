"""The plugin itself, on stand-ins for the two classes of vLLM that it is made of."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING

import pytest
import torch

from tests.nodes.test_vllm_paged import drawn, written_cpu_packed
from tests.nodes.test_vllm_worker import FakeSender
from tests.nodes.vllm_scheduler import Output, finished
from tests.nodes.vllm_stand_in import (
    Caches,
    Config,
    FullAttentionSpec,
    Group,
    MLAAttentionSpec,
    Parallel,
    SlidingWindowSpec,
    StandIn,
    Transfer,
    UniformTypeKVCacheSpecs,
    connect,
    imported_plugin,
)
from tilert_engine.layouts.abc import KVLayout
from tilert_engine.layouts.gqa import GqaLayout
from tilert_stream.errors import ConfigError
from tilert_stream.nodes.hand_over.destination import Destination, Grant, params_for
from tilert_stream.nodes.vllm.types import ConnectorMetadata

if TYPE_CHECKING:
    from tilert_stream.nodes import vllm_connector

PARAMS = params_for(Destination("node", 5556, Grant("a1", "d-1", 1)))


@pytest.fixture
def plugin() -> Iterator[ModuleType]:
    with imported_plugin() as module:
        yield module


def worker_caches() -> dict[str, torch.Tensor]:
    blocks = written_cpu_packed(drawn(3), [2, 0], 2, 4)
    return {f"model.layers.{index}.self_attn.attn": blocks for index in range(2)}


@pytest.fixture
def senders(plugin: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[FakeSender]:
    made: list[FakeSender] = []

    def make_sender(_self: object, layout: KVLayout, rank: int) -> FakeSender:
        made.append(FakeSender(layout, rank))
        return made[-1]

    monkeypatch.setattr(plugin.TilertStreamConnector, "make_sender", make_sender)
    return made


def test_a_prompt_goes_from_the_scheduler_through_the_worker_to_the_sender(
    plugin: ModuleType, senders: list[FakeSender]
) -> None:
    scheduler, worker = connect(plugin, Config()), connect(plugin, Config())
    worker.register_kv_caches(worker_caches())
    output = Output().new("r", [4, 5, 6], blocks=[2, 0], scheduled=3, params=PARAMS)
    metadata = pickle.loads(pickle.dumps(scheduler.build_connector_meta(output)))
    assert isinstance(worker, StandIn)
    worker.bind_connector_metadata(metadata)
    worker.wait_for_save()
    (sender,) = senders
    assert sender.layout == GqaLayout(
        model="tiny", layers=2, kv_heads=2, head_dim=3, dtype="float32", max_seq_len=16
    )
    assert isinstance(sender.layout, GqaLayout)
    staged = sender.layout.staged(sender.begun["r"].staging, 3)
    assert torch.equal(staged.keys[1], drawn(3)[:, 0])
    assert sender.begun["r"].did == ["send"]
    assert scheduler.request_finished(finished("r"), [2, 0]) == (False, None)


def test_a_request_of_another_connector_goes_through_untouched(
    plugin: ModuleType, senders: list[FakeSender]
) -> None:
    scheduler, worker = connect(plugin, Config()), connect(plugin, Config())
    worker.register_kv_caches(worker_caches())
    others = {"do_remote_decode": True, "remote_block_ids": [1, 2]}
    assert scheduler.get_num_new_matched_tokens(finished("r", params=others), 0) == (0, False)
    scheduler.update_state_after_alloc(finished("r", params=others), None, 0)
    output = Output().new("r", [4, 5, 6], blocks=[2, 0], scheduled=3, params=others)
    metadata = scheduler.build_connector_meta(output)
    assert isinstance(worker, StandIn)
    worker.bind_connector_metadata(metadata)
    worker.start_load_kv(None)
    worker.wait_for_layer_load("model.layers.0.self_attn.attn")
    worker.save_kv_layer("model.layers.0.self_attn.attn", torch.zeros(1), None)
    worker.wait_for_save()
    assert senders[0].begun == {}
    assert scheduler.request_finished(finished("r", params=others), [2, 0]) == (False, None)


def test_a_workers_empty_steps_and_the_metadata_of_others_do_nothing(
    plugin: ModuleType, senders: list[FakeSender]
) -> None:
    worker = connect(plugin, Config())
    worker.register_kv_caches(worker_caches())
    assert isinstance(worker, StandIn)
    module: vllm_connector.StepMetadata = plugin.StepMetadata()
    for metadata in (module, ConnectorMetadata()):
        worker.bind_connector_metadata(metadata)
        worker.wait_for_save()
    assert senders[0].begun == {}


def test_a_worker_with_replicated_heads_sends_nothing(
    plugin: ModuleType, senders: list[FakeSender]
) -> None:
    config = Config(parallel_config=Parallel(tensor_parallel_size=4, rank=3))
    worker = connect(plugin, config)
    worker.register_kv_caches(worker_caches())
    assert senders == []
    assert isinstance(worker, StandIn)
    worker.bind_connector_metadata(plugin.StepMetadata())
    worker.wait_for_save()
    worker.shutdown()


def test_options_of_tilert_name_the_model_and_the_length(
    plugin: ModuleType, senders: list[FakeSender]
) -> None:
    extra = {"tilert_model": "m", "tilert_max_seq_len": 8}
    worker = connect(plugin, Config(Transfer(kv_connector_extra_config=extra)))
    worker.register_kv_caches(worker_caches())
    layout = senders[0].layout
    assert (layout.describe()["model"], layout.max_seq_len) == ("m", 8)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (Config(Transfer(kv_role="kv_both")), "kv_role is 'kv_both'; this connector only produces"),
        (Config(None), "kv_role is None"),
        (
            Config(parallel_config=Parallel(pipeline_parallel_size=2)),
            "--pipeline-parallel-size is 2; the connector needs 1",
        ),
        (
            Config(parallel_config=Parallel(decode_context_parallel_size=2)),
            "--decode-context-parallel-size is 2; the connector needs 1",
        ),
        (
            Config(Transfer(kv_connector_extra_config={"hosts": "x"})),
            "kv_connector_extra_config has 'hosts'; known are host",
        ),
    ],
)
def test_a_configuration_that_cannot_work_is_refused_at_the_start(
    plugin: ModuleType, config: Config, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        connect(plugin, config)


@pytest.mark.parametrize(
    ("caches", "said"),
    [
        (
            Caches([Group(SlidingWindowSpec())]),
            "of kind SlidingWindowSpec; the connector needs one",
        ),
        (Caches([Group(), Group()]), "of kind FullAttentionSpec, FullAttentionSpec; "),
        (Caches([]), "of kind none; "),
        (
            Caches([Group(UniformTypeKVCacheSpecs.of(MLAAttentionSpec(), FullAttentionSpec()))]),
            "of kind FullAttentionSpec/MLAAttentionSpec; ",
        ),
    ],
)
def test_kv_09_a_cache_that_gives_blocks_back_early_is_refused(
    plugin: ModuleType, caches: Caches, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        connect(plugin, Config(), caches)


def test_the_real_sender_starts_and_stops(plugin: ModuleType) -> None:
    extra: dict[str, object] = {"transport": "memory", "staging_bytes": 100_000}
    worker = connect(plugin, Config(Transfer(kv_connector_extra_config=extra)))
    worker.register_kv_caches(worker_caches())
    worker.shutdown()
    worker.shutdown()
