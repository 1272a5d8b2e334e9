"""Stand-ins for the classes of vLLM that the plugin is made of, and for its configuration."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from tilert_stream.nodes.vllm.types import ConnectorMetadata

if TYPE_CHECKING:
    from tilert_stream.nodes.vllm_connector import TilertStreamConnector

NAME = "tilert_stream.nodes.vllm_connector"
BASE = "vllm.distributed.kv_transfer.kv_connector.v1.base"


class StandIn:
    """``KVConnectorBase_V1``, as far as the plugin uses it."""

    def __init__(self, vllm_config: object, role: object, kv_cache_config: object) -> None:
        self.metadata: ConnectorMetadata | None = None

    def bind_connector_metadata(self, metadata: ConnectorMetadata) -> None:
        self.metadata = metadata

    def _get_connector_metadata(self) -> ConnectorMetadata:
        assert self.metadata is not None
        return self.metadata


@contextmanager
def imported_plugin() -> Generator[ModuleType]:
    """The plugin's module, as vLLM imports it."""
    parts = BASE.split(".")
    with pytest.MonkeyPatch.context() as patch:
        for end in range(1, len(parts) + 1):
            module = ModuleType(".".join(parts[:end]))
            patch.setitem(sys.modules, module.__name__, module)
        base = sys.modules[BASE]
        patch.setattr(base, "KVConnectorBase_V1", StandIn, raising=False)
        patch.setattr(base, "KVConnectorMetadata", ConnectorMetadata, raising=False)
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
class TextConfig:
    model_type: str


@dataclass
class Model:
    model: str = "org/tiny"
    max_model_len: int = 16
    hf_text_config: object = None
    layers: int = 2

    def get_total_num_kv_heads(self) -> int:
        return 2

    def get_head_size(self) -> int:
        return 3

    def get_num_layers(self, parallel_config: object, /) -> int:
        return self.layers


@dataclass
class FullAttentionSpec:
    block_size: int = 2


@dataclass
class SlidingWindowSpec(FullAttentionSpec):
    pass


@dataclass
class MLAAttentionSpec(FullAttentionSpec):
    block_size: int = 64


@dataclass
class UniformTypeKVCacheSpecs(FullAttentionSpec):
    """What workers are told where layers differ in size."""

    kv_cache_specs: Mapping[str, FullAttentionSpec] = field(
        default_factory=dict[str, FullAttentionSpec]
    )

    @classmethod
    def of(cls, *specs: FullAttentionSpec) -> UniformTypeKVCacheSpecs:
        return cls(specs[0].block_size, {str(i): spec for i, spec in enumerate(specs)})


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
