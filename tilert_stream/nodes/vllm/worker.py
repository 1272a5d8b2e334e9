"""A worker's side of the connector: a step's work → KV caches in staging, given to the sender.

Runs on vLLM's forward path, after the kernels of the step have been queued: it copies, and leaves
all that waits for a network to the sender. A hand-over that fails is told to the decode node and
logged; it never takes vLLM's step down with it.
"""

from __future__ import annotations

import logging
import platform
import re
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, SupportsInt, cast

import torch

from tilert_stream.errors import ConfigError, TilertStreamError

from .paged import CacheShape, block_index, copy_rows, paged_views

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from tilert_engine.layouts.gqa import GqaLayout

    from .ledger import Extraction, StepWork, Withdrawal

__all__ = ("HandOver", "KVSender", "Place", "Worker")

logger = logging.getLogger(__name__)

_LAYER = re.compile(r"\blayers\.(\d+)\b")


class HandOver(Protocol):
    """One KV cache on its way. All but ``wait`` return at once, on any thread."""

    @property
    def staging(self) -> memoryview:
        """Room for the rank's part of the cache; nobody else's until the end of the hand-over."""
        ...

    def send(self) -> None:
        """The staging is filled: send it."""
        ...

    def abort(self, reason: str) -> None:
        """Give it up, and tell the decode node why."""
        ...

    def wait(self) -> None:
        """Block until it has ended, well or not."""
        ...


class KVSender(Protocol):
    """Sends KV caches, off the forward path."""

    @property
    def memory(self) -> memoryview:
        """All of the staging memory."""
        ...

    def begin(self, extraction: Extraction) -> HandOver:
        """Take a staging area. May wait for one: that is the back-pressure on prefill.

        :raises ~tilert_stream.errors.TilertStreamError: none came free in time, or the prompt is
            too long; the decode node has been told.
        """
        ...

    def withdraw(self, withdrawal: Withdrawal) -> None:
        """Stop what is on its way, and tell the decode node that nothing will come."""
        ...

    def close(self) -> None:
        """Give up what is on its way. Idempotent."""
        ...


@dataclass(frozen=True, slots=True)
class Place:
    """Which part of the model's KV cache a worker holds."""

    rank: int
    """The sender that it is in the layout; meaningless where it sends nothing."""
    senders: int
    """Of the whole model."""
    sends: bool
    """False where another worker has the same heads and sends them."""

    @classmethod
    def of(cls, kv_heads: int, tensor_parallel_rank: int, tensor_parallel_size: int) -> Place:
        """Share out ``kv_heads`` as vLLM does: with more ranks than heads, heads are replicated.

        :raises ~tilert_stream.errors.ConfigError: they cannot be shared out evenly.
        """
        senders = min(kv_heads, tensor_parallel_size)
        if kv_heads % senders or tensor_parallel_size % senders:
            raise ConfigError(
                f"--tensor-parallel-size is {tensor_parallel_size}, which does not share out"
                f" {kv_heads} key/value heads evenly; give a divisor or a multiple"
            )
        replicas = tensor_parallel_size // senders
        rank, replica = divmod(tensor_parallel_rank, replicas)
        return cls(rank, senders, sends=replica == 0)


class Worker:
    """What one worker does after each step.

    :param caches: vLLM's paged caches by layer name (``model.layers.0.self_attn.attn``).
    :param block_size: tokens in a block of vLLM's block table.
    :param rank: this worker's, among the layout's senders.
    :param sync: wait for the end of each hand-over, so that vLLM answers when the cache has landed.
    :raises ~tilert_stream.errors.ConfigError: caches that are not the layout's.
    """

    def __init__(
        self,
        caches: Mapping[str, torch.Tensor],
        *,
        layout: GqaLayout,
        block_size: int,
        rank: int,
        sender: KVSender,
        sync: bool = False,
    ) -> None:
        heads = layout.kv_heads // layout.senders
        layers = _in_order(caches, layout)
        shape = CacheShape(
            block_size, heads, layout.head_dim, cpu_backend=layers[0].device.type == "cpu"
        )
        self._layers = tuple(paged_views(cache, shape) for cache in layers)
        self._on_cuda = layers[0].is_cuda
        if self._on_cuda:
            _pin(sender.memory)
        if shape.cpu_backend:
            _check_kernels(layout.dtype)
        self._layout = layout
        self._block_size = block_size
        self._rank = rank
        self._sender = sender
        self._sync = sync

    def run(self, work: StepWork) -> None:
        """Hand over what the step has completed; withdraw what will not come."""
        for withdrawal in work.withdrawals:
            with _logged(withdrawal.request_id):
                self._sender.withdraw(withdrawal)
        for extraction in work.extractions:
            with _logged(extraction.request_id):
                self._hand_over(extraction)

    def _hand_over(self, extraction: Extraction) -> None:
        hand_over = self._sender.begin(extraction)
        try:
            self._extract(extraction, hand_over.staging)
        except Exception as error:
            hand_over.abort(f"prefill could not read the KV cache: {error}")
            raise
        hand_over.send()
        if self._sync:
            hand_over.wait()

    def _extract(self, extraction: Extraction, staging: memoryview) -> None:
        staged = self._layout.staged(staging, extraction.seq_len, self._rank)
        index = block_index(
            self._layers[0], extraction.blocks, self._block_size, extraction.seq_len
        )
        for layer, views in enumerate(self._layers):
            copy_rows(views.keys, index, staged.keys[layer])
            copy_rows(views.values, index, staged.values[layer])
        if self._on_cuda:
            torch.cuda.current_stream().synchronize()


def _check_kernels(dtype: str) -> None:
    """Refuse kernels of vLLM's CPU backend that store keys in ways of their own."""
    machine = platform.machine()
    if machine != "x86_64":
        raise ConfigError(
            f"vLLM's CPU backend runs on {machine}; how it stores keys is known for x86_64 only"
        )
    has_amx = torch.cpu._is_amx_tile_supported()  # pyright: ignore[reportPrivateUsage] -- vLLM asks it too
    if dtype == "bfloat16" and has_amx:
        raise ConfigError(
            "vLLM's CPU backend stores bfloat16 keys for AMX on this processor, which the connector"
            " cannot read; give vLLM --dtype float32"
        )


class _CudaRuntime(Protocol):
    def cudaHostRegister(self, address: int, nbytes: int, flags: int, /) -> SupportsInt: ...  # noqa: N802 - CUDA's name


def _pin(memory: memoryview) -> None:
    """Lock host memory for the device's copy engine: four times as fast, measured on an H200."""
    flat = torch.frombuffer(memory, dtype=torch.uint8)
    runtime = cast("_CudaRuntime", torch.cuda.cudart())  # type: ignore[no-untyped-call]  # untyped in torch
    failure = int(runtime.cudaHostRegister(flat.data_ptr(), flat.numel(), 0))
    if failure:
        logger.warning(
            "the staging memory (%d bytes) is not pinned, CUDA error %d: copies from the device are"
            " slower; raise the limit of locked memory (ulimit -l)",
            flat.numel(),
            failure,
        )


@contextmanager
def _logged(request_id: str) -> Generator[None]:
    """Keep a fault from the other requests of the step, and from vLLM."""
    try:
        yield
    except TilertStreamError as error:
        logger.warning("request %s is not handed over: %s", request_id, error)
    except Exception:
        logger.exception("request %s is not handed over", request_id)


def _in_order(caches: Mapping[str, torch.Tensor], layout: GqaLayout) -> list[torch.Tensor]:
    """The layers' caches by number.

    :raises ~tilert_stream.errors.ConfigError: one is missing, is there twice, or is quantised.
    """
    found: dict[int, torch.Tensor] = {}
    for name, cache in caches.items():
        match = _LAYER.search(name)
        if match is None or int(match[1]) in found:
            raise ConfigError(f"layer {name!r} of vLLM's KV cache has no number of its own")
        dtype = str(cache.dtype).removeprefix("torch.")
        if dtype != layout.dtype:
            raise ConfigError(
                f"layer {name!r} of vLLM's KV cache holds {dtype}, the layout {layout.dtype};"
                " give vLLM --kv-cache-dtype auto and the decode node's --dtype"
            )
        found[int(match[1])] = cache
    if sorted(found) != list(range(layout.layers)):
        raise ConfigError(
            f"vLLM's KV cache has layers {sorted(found)}; 0 to {layout.layers - 1} are needed"
        )
    return [found[number] for number in range(layout.layers)]
