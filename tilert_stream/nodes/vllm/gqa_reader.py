"""vLLM's paged caches of grouped-query attention → the rows of one prompt, layer by layer."""

from __future__ import annotations

import platform
import re
from typing import TYPE_CHECKING

import torch

from tilert_engine.layouts.gqa import GqaLayout
from tilert_stream.errors import ConfigError

from .paged import CacheShape, block_index, copy_rows, paged_views

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .place import Place

__all__ = ("GqaReader",)

_LAYER = re.compile(r"\blayers\.(\d+)\b")


class GqaReader:
    """A ``PromptReader`` of keys and values.

    :param caches: by layer name (``model.layers.0.self_attn.attn``).
    :param block_size: tokens in a block of vLLM's block table.
    :param rank: this worker's, among the layout's senders.
    :raises ~tilert_stream.errors.ConfigError: caches that are not the layout's.
    """

    def __init__(
        self, caches: Mapping[str, torch.Tensor], layout: GqaLayout, *, block_size: int, rank: int
    ) -> None:
        self.layout = layout
        self.rank = rank
        layers = _in_order(caches, layout)
        shape = CacheShape(
            block_size,
            layout.kv_heads // layout.senders,
            layout.head_dim,
            cpu_backend=layers[0].device.type == "cpu",
        )
        if shape.cpu_backend:
            _check_kernels(layout.dtype)
        self._layers = tuple(paged_views(cache, shape) for cache in layers)
        self._block_size = block_size
        self.on_cuda = layers[0].is_cuda

    @classmethod
    def of(
        cls,
        caches: Mapping[str, torch.Tensor],
        *,
        model: str,
        layers: int,
        kv_heads: int,
        head_dim: int,
        max_seq_len: int,
        place: Place,
        block_size: int,
    ) -> GqaReader:
        """With the layout of a model that vLLM describes; its dtype is the caches'.

        :raises ~tilert_stream.errors.ConfigError: as the class.
        """
        first = next(iter(caches.values()))
        layout = GqaLayout(
            model=model,
            layers=layers,
            kv_heads=kv_heads,
            head_dim=head_dim,
            dtype=_dtype(first),
            max_seq_len=max_seq_len,
            senders=place.senders,
        )
        return cls(caches, layout, block_size=block_size, rank=place.rank)

    def read(self, blocks: Sequence[int], seq_len: int, staging: memoryview) -> None:
        """As the contract."""
        staged = self.layout.staged(staging, seq_len, self.rank)
        index = block_index(self._layers[0], blocks, self._block_size, seq_len)
        for layer, views in enumerate(self._layers):
            copy_rows(views.keys, index, staged.keys[layer])
            copy_rows(views.values, index, staged.values[layer])


def _dtype(cache: torch.Tensor) -> str:
    return str(cache.dtype).removeprefix("torch.")


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


def _in_order(caches: Mapping[str, torch.Tensor], layout: GqaLayout) -> list[torch.Tensor]:
    """The layers' caches by number.

    :raises ~tilert_stream.errors.ConfigError: one is missing, is there twice, or is quantised.
    """
    found: dict[int, torch.Tensor] = {}
    for name, cache in caches.items():
        match = _LAYER.search(name)
        if match is None or int(match[1]) in found:
            raise ConfigError(f"layer {name!r} of vLLM's KV cache has no number of its own")
        dtype = _dtype(cache)
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
