"""A vLLM that prefills ``tiny-glm5``, as far as the connector meets one.

Paged caches that hold what the model's own prefill makes, blocks that are shared and taken away,
and a scheduler's steps. What no prompt has written is 0xEE.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch

from tests.engine.glm.asking import prefill
from tests.nodes.vllm_scheduler import Output, finished
from tests.nodes.vllm_stand_in import (
    Caches,
    Config,
    Group,
    MLAAttentionSpec,
    Model,
    StandIn,
    TextConfig,
    Transfer,
    UniformTypeKVCacheSpecs,
    connect,
)
from tilert_engine.layouts.mla_nsa_cache import CachedKV
from tilert_engine.layouts.mla_nsa_model import CacheDtype, row_bytes
from tilert_stream.abc import PrefillEngine
from tilert_stream.events import Limits

BLOCK = 64
BLOCKS = 24
MAIN_LAYERS = 4
LAYERS = MAIN_LAYERS + 1
"""The draft's included."""


def paged_caches(dtype: CacheDtype, *, head: bool = False) -> dict[str, torch.Tensor]:
    """vLLM's, under the names that it registers them by.

    :param head: whether there is a dimension of one head, as in newer releases.
    """
    caches: dict[str, torch.Tensor] = {}
    for layer in range(LAYERS):
        for name, width in (("attn", row_bytes(dtype)), ("indexer.k_cache", 132)):
            cache = torch.full((BLOCKS, BLOCK, width), 0xEE, dtype=torch.uint8)
            if width == 1152:
                cache = cache.view(torch.bfloat16)
            caches[f"model.layers.{layer}.self_attn.{name}"] = cache.unsqueeze(1) if head else cache
    return caches


@dataclass
class GlmVllm:
    """Made with the connector's module; ``close`` ends its sender.

    :param engine: computes prompts, with a cache of ``dtype``.
    :param extra: ``kv_connector_extra_config``.
    """

    plugin: ModuleType
    engine: PrefillEngine[Any]
    dtype: CacheDtype
    extra: Mapping[str, object]
    head: bool = False
    model: Model = field(
        default_factory=lambda: Model(
            "models/tiny-glm5", 256, TextConfig("glm_moe_dsa"), MAIN_LAYERS
        )
    )

    def __post_init__(self) -> None:
        self.caches = paged_caches(self.dtype, head=self.head)
        config = Config(Transfer(kv_connector_extra_config=self.extra), self.model)
        latents, keys = MLAAttentionSpec(), MLAAttentionSpec()
        self.scheduler = connect(self.plugin, config, Caches([Group(latents)]))
        both = UniformTypeKVCacheSpecs.of(latents, keys)
        self.worker = connect(self.plugin, config, Caches([Group(both)]))
        self.worker.register_kv_caches(self.caches)
        self.firsts: dict[tuple[int, ...], int] = {}
        self.computed: list[int] = []
        """Tokens of each step that were not in the prefix cache."""
        self._lock = threading.Lock()
        self._prefixes: dict[tuple[int, ...], int] = {}
        """Blocks that are full, by all ids up to their end."""
        order = torch.randperm(BLOCKS, generator=torch.Generator().manual_seed(7))
        self._blocks = [int(block) for block in order]

    def close(self) -> None:
        self.worker.shutdown()

    def cached(self, prompt: Sequence[int]) -> CachedKV:
        """What the engine makes of a prompt; notes its first token."""
        output = prefill(self.engine, prompt, Limits(1))
        self.firsts[tuple(prompt)] = output.first.ids[0]
        assert isinstance(output.kv, CachedKV)
        return output.kv

    def prefill(
        self,
        request_id: str,
        prompt: Sequence[int],
        params: Mapping[str, object],
        *,
        chunk: int = 256,
        preempted: bool = False,
        end: str = "FINISHED_LENGTH_CAPPED",
    ) -> int:
        """A request from its first step to its end; its first token.

        :param request_id: vLLM's own, of the request.
        :param chunk: tokens that a step computes.
        :param preempted: after its first chunk, whose blocks are then written by somebody else.
        :param end: vLLM's name of how it ends.
        """
        with self._lock:
            kv = self.cached(prompt)
            hits = self._hits(prompt)
            blocks = [*hits, *self._taken(-(-len(prompt) // BLOCK) - len(hits))]
            done = len(hits) * BLOCK
            known = lost = False
            while done < len(prompt):
                count = min(chunk, len(prompt) - done)
                self._write(kv, blocks, done, done + count)
                output = Output()
                if known:
                    output.more(
                        request_id,
                        computed=done,
                        scheduled=count,
                        blocks=blocks if lost else None,
                        resumed=lost,
                    )
                    lost = False
                else:
                    output.new(
                        request_id,
                        list(prompt),
                        blocks=blocks,
                        scheduled=count,
                        computed=done,
                        params=dict(params),
                    )
                    known = True
                self.computed.append(count)
                self.step(output)
                done += count
                if preempted:
                    for block in blocks[len(hits) :]:
                        self._spoil(block)
                    blocks = [*hits, *self._taken(len(blocks) - len(hits))]
                    done, preempted, lost = len(hits) * BLOCK, False, True
            for index in range(len(prompt) // BLOCK):
                self._prefixes[tuple(prompt[: (index + 1) * BLOCK])] = blocks[index]
            # What is in the blocks is anybody's from here on.
            self.scheduler.request_finished(finished(request_id, end, dict(params)), blocks)
            for block in blocks[len(prompt) // BLOCK :]:
                self._spoil(block)
            return self.firsts[tuple(prompt)]

    def abort(self, request_id: str, params: Mapping[str, object]) -> None:
        """A client leaves; the next step tells the worker."""
        status = finished(request_id, "FINISHED_ABORTED", dict(params))
        self.scheduler.request_finished(status, [])
        self.step(Output())

    def step(self, output: Output) -> None:
        """What a forward pass ends with; of an empty one, too."""
        assert isinstance(self.worker, StandIn)
        self.worker.bind_connector_metadata(self.scheduler.build_connector_meta(output))
        self.worker.wait_for_save()

    def _hits(self, prompt: Sequence[int]) -> list[int]:
        """Blocks of the longest prefix that is there; the last token is always computed."""
        hits: list[int] = []
        for end in range(BLOCK, len(prompt), BLOCK):
            block = self._prefixes.get(tuple(prompt[:end]))
            if block is None:
                break
            hits.append(block)
        return hits

    def _taken(self, count: int) -> list[int]:
        kept = set(self._prefixes.values())
        taken: list[int] = []
        while len(taken) < count:
            block = self._blocks.pop(0)
            self._blocks.append(block)
            if block not in kept:
                taken.append(block)
        return taken

    def _spoil(self, block: int) -> None:
        for cache in self.caches.values():
            cache[block].view(torch.uint8).fill_(0xEE)

    def _write(self, kv: CachedKV, blocks: Sequence[int], start: int, stop: int) -> None:
        """Tokens ``start`` to ``stop``, into every layer's blocks."""
        for layer in range(LAYERS):
            prefix = f"model.layers.{layer}.self_attn"
            rows = self.caches[f"{prefix}.attn"].view(torch.uint8).flatten(0, -3)
            pages = self.caches[f"{prefix}.indexer.k_cache"].flatten(0, -3).flatten(1)
            for token in range(start, stop):
                block, slot = blocks[token // BLOCK], token % BLOCK
                rows[block, slot] = kv.rows[layer, token]
                page = kv.pages[layer, token // BLOCK]
                for first, nbytes in ((slot * 128, 128), (8192 + slot * 4, 4)):
                    pages[block, first : first + nbytes] = page[first : first + nbytes]
