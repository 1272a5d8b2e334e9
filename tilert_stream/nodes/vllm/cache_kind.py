"""What vLLM says of its KV cache at the start → which of our layouts it is, and its block size.

Both of the connector's sides read it. The scheduler's is told one kind for all layers of a block
table; the workers', where layers differ in size (latents and an indexer's keys), a kind a layer.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias, cast

from tilert_stream.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .types import KVCacheConfig, KVCacheSpec

__all__ = ("CacheKind", "cache_kind")

LayoutName: TypeAlias = Literal["gqa", "mla_nsa"]

_LAYOUTS: Final[Mapping[str, LayoutName]] = MappingProxyType(
    {"FullAttentionSpec": "gqa", "MLAAttentionSpec": "mla_nsa"}
)


class CacheKind(NamedTuple):
    """Of the one block table that all layers share."""

    layout: LayoutName
    block_size: int
    """Tokens in a block of it; a layer's own blocks may be a fraction of that."""


def cache_kind(config: KVCacheConfig) -> CacheKind:
    """The kind of all layers.

    :raises ~tilert_stream.errors.ConfigError: there are several block tables, or a kind other than
        full attention. Such a cache gives blocks back before the prompt is done: what is read from
        them would be another prompt's.
    """
    kinds = ["/".join(_kinds(group.kv_cache_spec)) for group in config.kv_cache_groups]
    layout = _LAYOUTS.get(kinds[0]) if len(kinds) == 1 else None
    if layout is None:
        raise ConfigError(
            f"vLLM's KV cache is of kind {', '.join(kinds) or 'none'}; the connector needs one"
            f" {' or '.join(_LAYOUTS)}: serve a model whose layers all have full attention, or MLA"
            " with an NSA indexer"
        )
    return CacheKind(layout, config.kv_cache_groups[0].kv_cache_spec.block_size)


def _kinds(spec: KVCacheSpec) -> list[str]:
    """Names of the kinds in ``UniformTypeKVCacheSpecs``, which has one a layer; else its own."""
    layers = cast("Mapping[str, object] | None", getattr(spec, "kv_cache_specs", None))
    return sorted({type(each).__name__ for each in (layers.values() if layers else (spec,))})
