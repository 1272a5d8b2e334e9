"""The plugin itself, on stand-ins for the two classes of vLLM that it is made of."""

from __future__ import annotations

import importlib
import pickle
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING

import pytest
import torch

from tests.nodes.test_vllm_paged import drawn, written_cpu_packed
from tests.nodes.test_vllm_worker import FakeSender
from tests.nodes.vllm_scheduler import Output, finished
from tilert_engine.layouts.gqa import GqaLayout
from tilert_stream.errors import ConfigError
from tilert_stream.nodes.hand_over.destination import Destination, Grant, params_for
from tilert_stream.nodes.vllm.types import ConnectorMetadata

if TYPE_CHECKING:
    from tilert_stream.nodes import vllm_connector
    from tilert_stream.nodes.vllm_connector import TilertStreamConnector

NAME = "tilert_stream.nodes.vllm_connector"
BASE = "vllm.distributed.kv_transfer.kv_connector.v1.base"
PARAMS = params_for(Destination("node", 5556, Grant("a1", "d-1", 1)))


class StandIn:
    """``KVConnectorBase_V1``, as far as the plugin uses it."""

    def __init__(self, vllm_config: object, role: object, kv_cache_config: object) -> None:
        self.metadata: ConnectorMetadata | None = None

    def bind_connector_metadata(self, metadata: ConnectorMetadata) -> None:
        self.metadata = metadata

    def _get_connector_metadata(self) -> ConnectorMetadata:
        assert self.metadata is not None
        return self.metadata


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    parts = BASE.split(".")
    for end in range(1, len(parts) + 1):
        module = ModuleType(".".join(parts[:end]))
        monkeypatch.setitem(sys.modules, module.__name__, module)
    base = sys.modules[BASE]
    monkeypatch.setattr(base, "KVConnectorBase_V1", StandIn, raising=False)
    monkeypatch.setattr(base, "KVConnectorMetadata", ConnectorMetadata, raising=False)
    yield importlib.import_module(NAME)
    del sys.modules[NAME]


@dataclass
class Transfer:
    kv_role: str | None = "kv_producer"
    kv_connector_extra_config: Mapping[str, object] = field(default_factory=dict[str, object])


@dataclass
class Parallel:
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    decode_context_parallel_size: int = 1
    rank: int = 0


@dataclass
class Model:
    model: str = "org/tiny"
    max_model_len: int = 16

    def get_total_num_kv_heads(self) -> int:
        return 2

    def get_head_size(self) -> int:
        return 3

    def get_num_layers(self, parallel_config: object, /) -> int:
        return 2


@dataclass
class FullAttentionSpec:
    block_size: int = 2


@dataclass
class SlidingWindowSpec(FullAttentionSpec):
    pass


@dataclass
class Group:
    kv_cache_spec: FullAttentionSpec = field(default_factory=FullAttentionSpec)


@dataclass
class Caches:
    kv_cache_groups: list[Group] = field(default_factory=lambda: [Group()])


@dataclass
class Config:
    kv_transfer_config: Transfer | None = field(default_factory=Transfer)
    model_config: Model = field(default_factory=Model)
    parallel_config: Parallel = field(default_factory=Parallel)


def connect(
    plugin: ModuleType, config: Config, caches: Caches | None = None
) -> TilertStreamConnector:
    made: TilertStreamConnector = plugin.TilertStreamConnector(config, "role", caches or Caches())
    return made


def worker_caches() -> dict[str, torch.Tensor]:
    blocks = written_cpu_packed(drawn(3), [2, 0], 2, 4)
    return {f"model.layers.{index}.self_attn.attn": blocks for index in range(2)}


@pytest.fixture
def senders(plugin: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[FakeSender]:
    made: list[FakeSender] = []

    def make_sender(_self: object, layout: GqaLayout, rank: int) -> FakeSender:
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
    assert (senders[0].layout.model, senders[0].layout.max_seq_len) == ("m", 8)


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
