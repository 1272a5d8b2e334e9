"""vLLM's paged caches of MLA with an NSA indexer → the planes of one prompt.

What vLLM registers says the dtype (a latent row's stride) and whether there is a draft layer; names
say which model it is, and so which numbers of layers and which layout version a decode node has.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from tilert_engine.layouts.mla_nsa import MlaNsaLayout
from tilert_engine.layouts.mla_nsa_model import PAGE_TOKENS, MlaNsaModel, with_draft
from tilert_engine.layouts.mla_nsa_paged import extract, kind_of, layer_of, recognise, stored_dtype
from tilert_stream.errors import ConfigError

from .paged import own_blocks

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import torch

    from tilert_engine.layouts.mla_nsa_paged import PagedCaches

__all__ = ("MlaNsaReader",)

_ALIASES: Final[Mapping[str, str]] = MappingProxyType(
    {"glm_moe_dsa": "glm5", "deepseek_v32": "dsv32"}
)
"""By ``model_type`` of a checkpoint's ``config.json``: TileRT's name."""


class MlaNsaReader:
    """A ``PromptReader`` of latents, rope and indexer pages. Rank 0 has all of them.

    :param block_size: tokens in a block of vLLM's block table.
    :raises ~tilert_stream.errors.ConfigError: a block size that pages of 64 tokens do not fit in.
    """

    def __init__(self, paged: PagedCaches, layout: MlaNsaLayout, *, block_size: int) -> None:
        if block_size % PAGE_TOKENS:
            raise ConfigError(
                f"vLLM's block table has blocks of {block_size} tokens, the layout pages of"
                f" {PAGE_TOKENS}; give vLLM --block-size {PAGE_TOKENS}"
            )
        self.layout = layout
        self.rank = 0
        self._paged = paged
        self._pages_a_block = block_size // PAGE_TOKENS
        self.on_cuda = paged.rows[0].is_cuda

    @classmethod
    def of(
        cls,
        caches: Mapping[str, torch.Tensor],
        *,
        named: str | None,
        directory: str,
        model_type: str,
        main_layers: int,
        environment: Mapping[str, str],
        max_seq_len: int,
        block_size: int,
    ) -> MlaNsaReader:
        """With the layout of a model that vLLM describes.

        :param named: the model's name, where the operator gives one; see ``directory``.
        :param directory: the last part of vLLM's ``--model``: its name otherwise.
        :param model_type: of its ``config.json``, which knows GLM-5 and DeepSeek-V3.2 under any
            name of a directory.
        :param main_layers: without a draft's.
        :param environment: may have ``TILERT_PD_NO_MTP``.
        :raises ~tilert_stream.errors.ConfigError: latents without an indexer, a layer that is
            missing or extra, another stride, or another block size.
        """
        if not any(kind_of(name) == "indexer" for name in caches):
            raise ConfigError(
                f"vLLM's {len(caches)} KV caches are latents without an NSA indexer's; decode nodes"
                " take MLA with one (GLM-5, DeepSeek-V3.2): serve such a model"
            )
        draft = with_draft(environment)
        model = (
            _known(named or directory, draft=draft)
            or (None if named else _of_type(model_type, main_layers, draft=draft))
            or _own(named or directory, main_layers, caches, draft=draft)
        )
        dtype = stored_dtype(caches)
        paged = recognise(caches, model, dtype)
        layout = MlaNsaLayout(model=model, dtype=dtype, max_seq_len=max_seq_len)
        return cls(paged, layout, block_size=block_size)

    def read(self, blocks: Sequence[int], seq_len: int, staging: memoryview) -> None:
        """As the contract."""
        pages = own_blocks(blocks, self._pages_a_block)
        extract(self._paged, pages, self.layout.staged(staging, seq_len))


def _known(name: str, *, draft: bool) -> MlaNsaModel | None:
    try:
        return MlaNsaModel.of(name, draft=draft)
    except ConfigError:
        return None


def _of_type(model_type: str, main_layers: int, *, draft: bool) -> MlaNsaModel | None:
    """A small model of the same type has other numbers of layers, and its own name."""
    alias = _ALIASES.get(model_type)
    model = None if alias is None else MlaNsaModel.of(alias, draft=draft)
    return model if model is not None and model.main_layers == main_layers else None


def _own(name: str, main_layers: int, caches: Iterable[str], *, draft: bool) -> MlaNsaModel:
    """A model that TileRT has no name for: with the draft layers that vLLM registers."""
    model = MlaNsaModel(name, main_layers)
    last = max(layer_of(each, model)[1] for each in caches)
    return replace(model, draft_layers=max(0, last + 1 - main_layers) if draft else 0)
