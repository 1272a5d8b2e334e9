"""vLLM's paged caches of a whole model → the planes of one prompt.

``recognise`` sorts the tensors that vLLM registers by layer and refuses what does not fit;
``extract`` gathers a prompt's blocks. Both are pure functions on tensors, on CPU and CUDA.

A latent cache is ``[blocks, 64, 656]`` uint8 (``fp8_ds_mla``) or ``[blocks, 64, 576]`` bf16, an
indexer cache ``[blocks, 64, 132]`` uint8, whose blocks are pages: values first, then scales. Newer
releases have a dimension of one head in between. Blocks may lie further apart than they are long.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import torch

from tilert_stream.errors import ConfigError

from .mla_nsa_model import (
    INDEXER,
    PAGE_BYTES,
    PAGE_TOKENS,
    PAGE_VALUE_BYTES,
    latent_bytes,
    row_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from .mla_nsa_cache import WirePlanes
    from .mla_nsa_model import CacheDtype, MlaNsaModel

__all__ = ("PagedCaches", "extract", "kind_of", "layer_of", "recognise", "stored_dtype")

Kind: TypeAlias = Literal["latent", "indexer"]

_DRAFT_FLAG: Final = '--speculative-config {"method":"mtp","num_speculative_tokens":1}'
_PAGE_ROW_BYTES: Final = PAGE_BYTES // PAGE_TOKENS
_DTYPES: Final[tuple[CacheDtype, ...]] = ("fp8_ds_mla", "bf16")


@dataclass(frozen=True, slots=True, eq=False)
class PagedCaches:
    """A model's caches, a tensor a layer, in the layers' order; views of vLLM's."""

    dtype: CacheDtype
    rows: tuple[torch.Tensor, ...]
    """Each uint8 ``[blocks, 64, 656 or 1152]``."""
    pages: tuple[torch.Tensor, ...]
    """Each uint8 ``[blocks, 64, 132]``; a block is a page of 8448 bytes."""


def kind_of(name: str) -> Kind:
    """Whose cache a tensor is, by the name that vLLM registers it under."""
    return "indexer" if "indexer" in name or "index_k" in name else "latent"


def layer_of(name: str, model: MlaNsaModel) -> tuple[Kind, int]:
    """Which cache a tensor is, by the name that vLLM registers it under.

    ``model.layers.3.self_attn.indexer.k_cache`` are the indexer's pages of layer 3; a name with
    ``mtp.`` in it is the last layer.

    :raises ~tilert_stream.errors.ConfigError: there is no number in it.
    """
    kind = kind_of(name)
    if name.startswith("mtp.") or ".mtp." in name:
        return kind, model.main_layers + max(model.draft_layers, 1) - 1
    for part in name.split("."):
        if part.isdecimal():
            return kind, int(part)
    raise ConfigError(
        f"vLLM has a KV cache named {name!r}, which names no layer; a name with a number, such as"
        " model.layers.0.self_attn.attn, is needed"
    )


def stored_dtype(caches: Mapping[str, torch.Tensor]) -> CacheDtype:
    """The dtype that vLLM keeps latents in, by the stride of their rows; ``recognise`` checks all.

    :param caches: by name, as ``register_kv_caches`` gets them.
    :raises ~tilert_stream.errors.ConfigError: there are no latents, or in a dtype of another kind.
    """
    name = next((name for name in caches if kind_of(name) == "latent"), None)
    if name is None:
        raise ConfigError(f"none of vLLM's {len(caches)} KV caches is one of latents")
    cache = _three_dimensional(name, caches[name])
    stride = cache.stride(1) * cache.element_size()
    dtype = _dtype_of(stride)
    if dtype is None:
        known = " or ".join(f"{row_bytes(each)} ({each})" for each in _DTYPES)
        raise ConfigError(
            f"the KV cache {name} has rows {stride} bytes apart; {known} are needed: give vLLM"
            " --kv-cache-dtype fp8_ds_mla or bfloat16"
        )
    return dtype


def recognise(
    caches: Mapping[str, torch.Tensor], model: MlaNsaModel, dtype: CacheDtype
) -> PagedCaches:
    """Sort all caches that vLLM has, by layer.

    :param caches: by name, as ``register_kv_caches`` gets them.
    :raises ~tilert_stream.errors.ConfigError: a layer is missing (for the draft's: with the flag
        that brings it), extra or there twice; or a cache has another stride or block size.
    """
    found: dict[tuple[Kind, int], str] = {}
    for name in caches:
        key = layer_of(name, model)
        if key in found:
            raise ConfigError(
                f"vLLM has two {key[0]} caches of layer {key[1]}: {found[key]} and {name}"
            )
        found[key] = name
    _check_layers(found, model)
    rows: list[torch.Tensor] = []
    pages: list[torch.Tensor] = []
    for layer in range(model.layers):
        name = found["latent", layer]
        rows.append(_checked_rows(name, _three_dimensional(name, caches[name]), dtype))
        name = found["indexer", layer]
        pages.append(_checked_pages(name, _three_dimensional(name, caches[name])))
    return PagedCaches(dtype, tuple(rows), tuple(pages))


def extract(paged: PagedCaches, blocks: Sequence[int], planes: WirePlanes) -> None:
    """Copy one prompt's cache into ``planes``; on CUDA, as soon as the stream comes to it.

    What the last page holds beyond the prompt is another request's: zeros are sent in its place.

    :param blocks: of the block table, in the prompt's order; more than needed are ignored.
    :raises ValueError: there are fewer blocks than the tokens take, or one does not exist; or
        ``planes`` are of another shape.
    """
    layers, tokens, latent = planes.kv.shape
    needed = -(-tokens // PAGE_TOKENS)
    if (layers, latent) != (len(paged.rows), latent_bytes(paged.dtype)):
        raise ValueError(
            f"the planes are for {layers} layers of {latent} bytes a latent, the caches have"
            f" {len(paged.rows)} of {latent_bytes(paged.dtype)}"
        )
    count = min(cache.shape[0] for cache in (*paged.rows, *paged.pages))
    wanted = list(blocks[:needed])
    if len(wanted) < needed:
        raise ValueError(
            f"{tokens} tokens take {needed} blocks of {PAGE_TOKENS}; there are {len(wanted)}"
        )
    if not all(0 <= block < count for block in wanted):
        raise ValueError(
            f"blocks {min(wanted)} to {max(wanted)} are asked for; the cache has {count}"
        )
    index = torch.tensor(wanted, device=paged.rows[0].device)
    last = tokens % PAGE_TOKENS
    for layer, (row_cache, page_cache) in enumerate(zip(paged.rows, paged.pages, strict=True)):
        rows = row_cache.index_select(0, index).flatten(0, 1)[:tokens]
        planes.kv[layer].copy_(rows[:, :latent], non_blocking=True)
        planes.pe[layer].copy_(rows[:, latent:], non_blocking=True)
        pages = page_cache.index_select(0, index).flatten(1)
        if last:
            pages[-1, last * INDEXER : PAGE_VALUE_BYTES] = 0
            pages[-1, PAGE_VALUE_BYTES + last * 4 :] = 0
        planes.ki[layer].copy_(pages, non_blocking=True)


def _check_layers(found: Mapping[tuple[Kind, int], str], model: MlaNsaModel) -> None:
    kinds: tuple[Kind, ...] = ("latent", "indexer")
    wanted = {(kind, layer) for kind in kinds for layer in range(model.layers)}
    missing, extra = wanted - found.keys(), found.keys() - wanted
    if not missing and not extra:
        return
    said = (
        f"vLLM has {len(found)} KV caches, the layout of {model.name} {len(wanted)} (latent and"
        f" indexer of {model.layers} layers)"
    )
    draft = {(kind, model.main_layers + more) for kind in kinds for more in range(_drafts(model))}
    if missing and missing <= draft:
        fix = (
            f"the draft layer's are missing; give vLLM {_DRAFT_FLAG}, or TILERT_PD_NO_MTP=1 to both"
            " nodes"
        )
    elif not missing and extra <= draft:
        fix = (
            f"it has a draft layer that the layout leaves out; start it without {_DRAFT_FLAG}, or"
            " both nodes without TILERT_PD_NO_MTP and --no-mtp"
        )
    else:
        fix = (
            f"missing: {_listed(f'{kind} of layer {layer}' for kind, layer in sorted(missing))};"
            f" extra: {_listed(found[key] for key in sorted(extra))};"
            " serve the same model on both nodes (--model), without pipeline parallelism"
        )
    raise ConfigError(f"{said}; {fix}")


def _drafts(model: MlaNsaModel) -> int:
    """How many layers past the main ones are a draft's; one where the layout leaves it out."""
    return max(model.draft_layers, 1)


def _listed(items: Iterable[str]) -> str:
    first = list(items)
    return ", ".join(first[:4]) + (f" and {len(first) - 4} more" if first[4:] else "") or "none"


def _dtype_of(stride: int) -> CacheDtype | None:
    return next((known for known in _DTYPES if row_bytes(known) == stride), None)


def _three_dimensional(name: str, cache: torch.Tensor) -> torch.Tensor:
    if cache.dim() == 4 and cache.shape[1] == 1:
        cache = cache.squeeze(1)
    if cache.dim() != 3 or cache.stride(2) != 1:
        raise ConfigError(
            f"the KV cache {name} has shape {list(cache.shape)} and strides {list(cache.stride())};"
            " [blocks, 64, bytes] with rows of contiguous bytes are needed"
        )
    if cache.shape[1] != PAGE_TOKENS:
        raise ConfigError(
            f"the KV cache {name} has blocks of {cache.shape[1]} tokens, the layout of"
            f" {PAGE_TOKENS}; give vLLM --block-size {PAGE_TOKENS}"
        )
    return cache


def _checked_rows(name: str, cache: torch.Tensor, dtype: CacheDtype) -> torch.Tensor:
    stride = cache.stride(1) * cache.element_size()
    width = cache.shape[2] * cache.element_size()
    if not stride == width == row_bytes(dtype):
        got = _dtype_of(stride) or "no known dtype"
        flag = "fp8_ds_mla" if dtype == "fp8_ds_mla" else "bfloat16"
        raise ConfigError(
            f"the KV cache {name} has rows of {width} bytes, {stride} apart ({got}), the layout of"
            f" {row_bytes(dtype)} ({dtype}); give vLLM --kv-cache-dtype {flag}"
        )
    return cache.view(torch.uint8)


def _checked_pages(name: str, cache: torch.Tensor) -> torch.Tensor:
    stride = cache.stride(1) * cache.element_size()
    width = cache.shape[2] * cache.element_size()
    if not stride == width == _PAGE_ROW_BYTES:
        raise ConfigError(
            f"the indexer cache {name} has {width} bytes a token, {stride} apart, the layout"
            f" {_PAGE_ROW_BYTES} (128 fp8 and a scale): it is of another model, or its indexer is"
            " not quantised to fp8"
        )
    return cache.view(torch.uint8)
