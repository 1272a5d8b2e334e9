"""The plugin that stock vLLM loads for prefill: KV caches of its prompts go to a decode node.

::

    vllm serve MODEL --kv-transfer-config '{"kv_connector": "TilertStreamConnector",
        "kv_connector_module_path": "tilert_stream.nodes.vllm_connector",
        "kv_role": "kv_producer"}'

vLLM makes two of it: one beside its scheduler, which keeps the ``Ledger`` and sends a ``StepWork``
with each step, and one in every worker, which copies what the step has completed and lets a sender
of its own thread hand it over. Requests whose ``kv_transfer_params`` have no key of ours are left
alone, so that it can stand beside other connectors under ``MultiConnector``.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tilert_stream.errors import ConfigError

from .vllm.cache_kind import cache_kind
from .vllm.ledger import Ledger, StepWork
from .vllm.options import VllmOptions
from .vllm.reader import open_reader
from .vllm.worker import Worker

if TYPE_CHECKING:
    import torch

    from tilert_engine.layouts.abc import KVLayout

    from .vllm.types import ConnectorBase as KVConnectorBase_V1
    from .vllm.types import ConnectorMetadata as KVConnectorMetadata
    from .vllm.types import (
        KVCacheConfig,
        KVTransferConfig,
        ParallelConfig,
        Request,
        SchedulerOutput,
        VllmConfig,
    )
    from .vllm.worker import KVSender
else:
    from vllm.distributed.kv_transfer.kv_connector.v1.base import (
        KVConnectorBase_V1,
        KVConnectorMetadata,
    )

__all__ = ("StepMetadata", "TilertStreamConnector")

logger = logging.getLogger(__name__)


@dataclass
class StepMetadata(KVConnectorMetadata):
    """What the scheduler's side tells the workers with a step."""

    work: StepWork = field(default_factory=StepWork)


class TilertStreamConnector(KVConnectorBase_V1):
    """A producer of KV caches for decode nodes of this project, and of TileRT.

    :raises ~tilert_stream.errors.ConfigError: a role other than ``kv_producer``, an option that is
        wrong, or a kind of cache or parallelism that no layout has.
    """

    def __init__(
        self, vllm_config: VllmConfig, role: object, kv_cache_config: KVCacheConfig
    ) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        transfer = _producer(vllm_config)
        _check_parallel(vllm_config.parallel_config)
        self._kind = cache_kind(kv_cache_config)
        self._config = vllm_config
        self._options = VllmOptions.of(transfer.kv_connector_extra_config)
        self._ledger = Ledger(
            self._kind.block_size,
            default_host=self._options.host,
            default_port=self._options.ctrl_port,
        )
        self._sender: KVSender | None = None
        self._worker: Worker | None = None

    @property
    def requires_kv_delivery(self) -> bool:
        """False: a prompt's KV cache is copied in the step that completes it.

        A preemption afterwards takes nothing away, so that vLLM need not compute the prompt anew.
        """
        return False

    # --- in the workers ----------------------------------------------------------------------

    def make_sender(self, layout: KVLayout, rank: int) -> KVSender:
        """What hands KV caches over, off the forward path."""
        # Only workers need them, and only those that send.
        from tilert_transports.control.auth import ClusterKey
        from tilert_transports.registry import make

        from .hand_over.courier import open_courier
        from .vllm.sender import SenderThread

        options = self._options
        secret = options.cluster_key()
        return SenderThread(
            lambda: open_courier(
                make(options.transport),
                layout,
                rank=rank,
                staging_bytes=options.staging_for(layout.staging_bytes(layout.max_seq_len, rank)),
                send_timeout=options.send_timeout,
                key=None if secret is None else ClusterKey(secret),
            ),
            layout,
            rank=rank,
            timeout=options.send_timeout,
        )

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """Take the paged caches, by layer name; starts the sender."""
        reader = open_reader(kv_caches, self._kind, self._config, self._options)
        if reader is None:
            return
        self._sender = self.make_sender(reader.layout, reader.rank)
        self._worker = Worker(reader, self._sender, sync=self._options.sync_send)

    def start_load_kv(self, forward_context: object, **kwargs: object) -> None:
        """Nothing is ever loaded."""

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing is ever loaded."""

    def save_kv_layer(
        self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: object, **kwargs: object
    ) -> None:
        """Nothing is saved layer by layer: a prompt's blocks are read when all of it is there."""

    def wait_for_save(self) -> None:
        """Hand over what this step has completed; called after each step, empty ones too."""
        metadata = self._get_connector_metadata()
        if self._worker is not None and isinstance(metadata, StepMetadata):
            self._worker.run(metadata.work)

    def shutdown(self) -> None:
        """Give up what is on its way."""
        if self._sender is not None:
            self._sender.close()

    # --- beside the scheduler ----------------------------------------------------------------

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int, bool]:
        """No tokens: this side only produces."""
        return 0, False

    def update_state_after_alloc(
        self, request: Request, blocks: object, num_external_tokens: int
    ) -> None:
        """Nothing: the scheduler's output has the blocks."""

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> StepMetadata:
        """What the workers do after this step."""
        return StepMetadata(self._ledger.step(scheduler_output))

    def request_finished(
        self, request: Request, block_ids: list[int]
    ) -> tuple[bool, dict[str, object] | None]:
        """Its blocks may go at once: they have been copied."""
        self._ledger.finish(request)
        return False, None


def _producer(config: VllmConfig) -> KVTransferConfig:
    transfer = config.kv_transfer_config
    role = None if transfer is None else transfer.kv_role
    if transfer is None or role != "kv_producer":
        raise ConfigError(
            f"kv_role is {role!r}; this connector only produces: set it to 'kv_producer'"
        )
    return transfer


def _check_parallel(config: ParallelConfig) -> None:
    """Refuse what splits a prompt's rows or layers among workers."""
    for name in (
        "pipeline_parallel_size",
        "decode_context_parallel_size",
        "prefill_context_parallel_size",
    ):
        size: int = getattr(config, name, 1)  # the last two are younger than the connector's API
        if size != 1:
            flag = name.replace("_", "-")
            raise ConfigError(
                f"--{flag} is {size}; the connector needs 1 (use --tensor-parallel-size)"
            )
