"""What the connector uses of vLLM's objects (V1, 0.24 to 0.32), for type checkers.

vLLM is not installed where this project is checked, and it moves: these protocols are the whole
surface that the connector leans on. Each names the class that it stands for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

__all__ = (
    "CachedRequests",
    "ConnectorBase",
    "ConnectorMetadata",
    "KVCacheConfig",
    "KVCacheGroup",
    "KVCacheSpec",
    "KVTransferConfig",
    "ModelConfig",
    "NewRequest",
    "ParallelConfig",
    "Request",
    "RequestStatus",
    "SamplingParams",
    "SchedulerOutput",
    "VllmConfig",
)


class SamplingParams(Protocol):
    """``vllm.SamplingParams``."""

    extra_args: Mapping[str, object] | None
    """Holds the request's ``kv_transfer_params``."""


class NewRequest(Protocol):
    """``vllm.v1.core.sched.output.NewRequestData``."""

    req_id: str
    prompt_token_ids: list[int] | None
    sampling_params: SamplingParams | None
    block_ids: tuple[list[int], ...]
    """One list a group of layers that share a block table."""
    num_computed_tokens: int


class CachedRequests(Protocol):
    """``vllm.v1.core.sched.output.CachedRequestData``; lists are in the order of ``req_ids``."""

    req_ids: list[str]
    resumed_req_ids: set[str]
    """Their new blocks replace the old ones."""
    new_block_ids: list[tuple[list[int], ...] | None]
    num_computed_tokens: list[int]


class SchedulerOutput(Protocol):
    """``vllm.v1.core.sched.output.SchedulerOutput``."""

    @property
    def scheduled_new_reqs(self) -> Sequence[NewRequest]:
        """Requests that the workers do not know yet."""
        ...

    @property
    def scheduled_cached_reqs(self) -> CachedRequests:
        """Requests that they know."""
        ...

    num_scheduled_tokens: dict[str, int]
    """Tokens that this step computes, by request."""


class RequestStatus(Protocol):
    """``vllm.v1.request.RequestStatus``."""

    @property
    def name(self) -> str:
        """Such as ``FINISHED_ABORTED``."""
        ...


class Request(Protocol):
    """``vllm.v1.request.Request``."""

    request_id: str
    kv_transfer_params: Mapping[str, object] | None

    @property
    def status(self) -> RequestStatus:
        """Where it stands."""
        ...


class KVTransferConfig(Protocol):
    """``vllm.config.KVTransferConfig``."""

    kv_role: str | None
    kv_connector_extra_config: Mapping[str, object]


class ParallelConfig(Protocol):
    """``vllm.config.ParallelConfig``."""

    tensor_parallel_size: int
    pipeline_parallel_size: int
    rank: int


class ModelConfig(Protocol):
    """``vllm.config.ModelConfig``."""

    model: str
    max_model_len: int

    @property
    def hf_text_config(self) -> object:
        """The checkpoint's ``config.json``; a ``model_type`` may be in it."""
        ...

    def get_total_num_kv_heads(self) -> int:
        """Of the whole model."""
        ...

    def get_head_size(self) -> int:
        """Elements of a head."""
        ...

    def get_num_layers(self, parallel_config: ParallelConfig, /) -> int:
        """Layers in this worker."""
        ...


class KVCacheSpec(Protocol):
    """``vllm.v1.kv_cache_interface.KVCacheSpec``, of one of its kinds."""

    @property
    def block_size(self) -> int:
        """Tokens in a block of the block table."""
        ...


class KVCacheGroup(Protocol):
    """``vllm.v1.kv_cache_interface.KVCacheGroupSpec``: layers that share a block table."""

    @property
    def kv_cache_spec(self) -> KVCacheSpec:
        """What one layer's cache is."""
        ...


class KVCacheConfig(Protocol):
    """``vllm.v1.kv_cache_interface.KVCacheConfig``."""

    @property
    def kv_cache_groups(self) -> Sequence[KVCacheGroup]:
        """One, unless vLLM's hybrid memory allocator is on."""
        ...


class VllmConfig(Protocol):
    """``vllm.config.VllmConfig``."""

    @property
    def kv_transfer_config(self) -> KVTransferConfig | None:
        """The connector's own part."""
        ...

    @property
    def model_config(self) -> ModelConfig:
        """The model."""
        ...

    @property
    def parallel_config(self) -> ParallelConfig:
        """The ranks."""
        ...


class ConnectorMetadata:
    """``KVConnectorMetadata``: what the scheduler sends to the workers with a step."""


class ConnectorBase:
    """``KVConnectorBase_V1``, as far as it is called from here."""

    def __init__(
        self, vllm_config: VllmConfig, role: object, kv_cache_config: KVCacheConfig
    ) -> None:
        raise NotImplementedError

    def _get_connector_metadata(self) -> ConnectorMetadata:
        raise NotImplementedError

    def has_connector_metadata(self) -> bool:
        """Whether a step is running."""
        raise NotImplementedError

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """Take the paged caches, by layer name."""
        raise NotImplementedError

    def shutdown(self) -> None:
        """End."""
        raise NotImplementedError
