"""vLLM's paged caches, as it registers them → what reads a prompt out of them, and its layout."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from .gqa_reader import GqaReader
from .mla_nsa_reader import MlaNsaReader
from .place import Place

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from tilert_engine.layouts.abc import KVLayout

    from .cache_kind import CacheKind
    from .options import VllmOptions
    from .types import VllmConfig

__all__ = ("PromptReader", "open_reader")


class PromptReader(Protocol):
    """Reads this worker's part of a prompt's KV cache."""

    @property
    def layout(self) -> KVLayout:
        """Of what is read, for the whole model."""
        ...

    @property
    def rank(self) -> int:
        """This worker's, among the layout's senders."""
        ...

    @property
    def on_cuda(self) -> bool:
        """Whether ``read`` returns before the device has come to it."""
        ...

    def read(self, blocks: Sequence[int], seq_len: int, staging: memoryview) -> None:
        """Copy a prompt into ``staging``; on CUDA, as soon as the stream comes to it.

        :param blocks: of vLLM's block table, in the prompt's order.
        :raises ValueError: there are fewer blocks than the tokens take, or one does not exist.
        """
        ...


def open_reader(
    caches: Mapping[str, torch.Tensor], kind: CacheKind, config: VllmConfig, options: VllmOptions
) -> PromptReader | None:
    """What reads ``caches``; None where another worker has the same and sends it.

    :param caches: by layer name (``model.layers.0.self_attn.attn``).
    :raises ~tilert_stream.errors.ConfigError: they are not of the kind, or not of the model; or
        heads that cannot be shared out.
    """
    parallel, model = config.parallel_config, config.model_config
    size = parallel.tensor_parallel_size
    heads = model.get_total_num_kv_heads() if kind.layout == "gqa" else 1
    place = Place.of(heads, parallel.rank % size, size)
    if not place.sends:
        return None
    max_seq_len = options.max_seq_len or model.max_model_len
    directory = Path(model.model).resolve().name
    if kind.layout == "mla_nsa":
        return MlaNsaReader.of(
            caches,
            named=options.model,
            directory=directory,
            model_type=str(getattr(model.hf_text_config, "model_type", "")),
            main_layers=model.get_num_layers(parallel),
            environment=os.environ,
            max_seq_len=max_seq_len,
            block_size=kind.block_size,
        )
    return GqaReader.of(
        caches,
        model=options.model or directory,
        layers=model.get_num_layers(parallel),
        kv_heads=heads,
        head_dim=model.get_head_size(),
        max_seq_len=max_seq_len,
        place=place,
        block_size=kind.block_size,
    )
