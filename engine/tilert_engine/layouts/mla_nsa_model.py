"""What a model with MLA and an NSA indexer caches: a name and a setting in, sizes out.

No torch: a router or a node that only plans copies needs nothing else.

Formats: vLLM's ``fp8_ds_mla`` rows (``vllm/v1/attention/backends/mla/flashmla_sparse.py``), its
indexer pages (``csrc/cache_kernels.cu``) and the numbering of layouts in TileRT's ``pd_vllm``.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from tilert_stream.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = (
    "BLOCK",
    "INDEXER",
    "LATENT",
    "PAGE_BYTES",
    "PAGE_TOKENS",
    "ROPE",
    "CacheDtype",
    "MlaNsaModel",
    "cache_dtype",
    "latent_bytes",
    "row_bytes",
    "with_draft",
)

LATENT: Final = 512
"""Values of the compressed keys and values, a token and layer."""
ROPE: Final = 64
"""Values of the rotated key that all heads share; always bf16."""
ROPE_BYTES: Final = ROPE * 2
INDEXER: Final = 128
"""Values of the indexer's key."""
BLOCK: Final = 128
"""Values that share one fp32 scale."""
PAGE_TOKENS: Final = 64
"""Tokens of an indexer page, and of a block of vLLM's paged caches."""
PAGE_VALUE_BYTES: Final = PAGE_TOKENS * INDEXER
PAGE_BYTES: Final = PAGE_VALUE_BYTES + PAGE_TOKENS * 4
"""First the fp8 values of all the page's tokens, then their fp32 scales."""

CacheDtype: TypeAlias = Literal["fp8_ds_mla", "bf16"]

_LATENT_BYTES: Final[Mapping[CacheDtype, int]] = MappingProxyType(
    {"fp8_ds_mla": LATENT + LATENT // BLOCK * 4, "bf16": LATENT * 2}
)
_DTYPE_NAMES: Final[Mapping[str, CacheDtype]] = MappingProxyType(
    {
        "fp8_ds_mla": "fp8_ds_mla",
        "fp8": "fp8_ds_mla",
        "fp8_e4m3": "fp8_ds_mla",
        "bf16": "bf16",
        "bfloat16": "bf16",
        "auto": "bf16",
    }
)
_BF16_VERSION: Final = 40
_OWN_VERSIONS: Final = 100_000


def cache_dtype(name: str) -> CacheDtype:
    """The cache's dtype by any name that vLLM's or TileRT's ``--kv-cache-dtype`` takes.

    :raises ~tilert_stream.errors.ConfigError: an unknown name.
    """
    try:
        return _DTYPE_NAMES[name]
    except KeyError:
        raise ConfigError(
            f"--kv-cache-dtype is {name!r}; give one of {', '.join(_DTYPE_NAMES)}",
            param="kv_cache_dtype",
        ) from None


def latent_bytes(dtype: CacheDtype) -> int:
    """Bytes of a token's latent in one layer, the scales included: 528 or 1024."""
    return _LATENT_BYTES[dtype]


def row_bytes(dtype: CacheDtype) -> int:
    """Bytes of a row of vLLM's latent cache, latent then rope: 656 or 1152."""
    return _LATENT_BYTES[dtype] + ROPE_BYTES


def with_draft(environment: Mapping[str, str], *, flag: bool | None = None) -> bool:
    """Whether the draft layer's cache travels: ``--with-mtp``, else ``TILERT_PD_NO_MTP``, else yes.

    :param flag: None where it was not given.
    :raises ~tilert_stream.errors.ConfigError: ``TILERT_PD_NO_MTP`` is neither 0 nor 1.
    """
    if flag is not None:
        return flag
    value = environment.get("TILERT_PD_NO_MTP", "").strip()
    if value not in ("", "0", "1"):
        raise ConfigError(
            f"TILERT_PD_NO_MTP is {value!r}; give 1 (no draft layer) or 0, the same on both nodes"
        )
    return value != "1"


@dataclass(frozen=True, slots=True)
class MlaNsaModel:
    """How many layers of a model are cached. Everything else is the same in all of them.

    :raises ~tilert_stream.errors.ConfigError: no layer, or a negative number of draft layers.
    """

    name: str
    main_layers: int
    draft_layers: int = 1
    """Layers of the multi-token-prediction draft; they come after the main ones."""
    tilert_version: int | None = None
    """TileRT's number for this model with an fp8 cache; None for a model of our own."""

    def __post_init__(self) -> None:
        if self.main_layers < 1 or self.draft_layers < 0:
            raise ConfigError(
                f"{self.name} has {self.main_layers} layers and {self.draft_layers} draft layers;"
                " at least 1 and 0 are needed"
            )

    @classmethod
    def of(cls, name: str, *, draft: bool = True) -> MlaNsaModel:
        """A known model by its name or one of TileRT's aliases.

        :param draft: whether GLM-5's draft layer travels. DeepSeek-V3.2's always does, as TileRT
            has it: a decode node without MTP only leaves it unread.
        :raises ~tilert_stream.errors.ConfigError: an unknown name.
        """
        key = name.lower().replace("-", "").replace("_", "").replace(".", "")
        if key in ("glm5", "glm51"):
            return cls("glm5", 78, 1, 10) if draft else cls("glm5", 78, 0, 1010)
        if key in ("dsv32", "deepseekv32", "v32"):
            return cls("dsv32", 61, 1, 11)
        raise ConfigError(
            f"the model is {name!r}; glm5 (glm_5, glm-5) and dsv32 (deepseek_v3_2, deepseek-v3.2,"
            " dsv3.2, v32) have known KV caches",
            param="model",
        )

    @property
    def layers(self) -> int:
        """Cache layers, the draft's included."""
        return self.main_layers + self.draft_layers

    def version(self, dtype: CacheDtype) -> int:
        """The layout's number: TileRT's, or one that no other shape of ours has.

        The ``tilert-pd`` dialect compares nothing else, so the number of layers must be in it.
        """
        fp8 = self.tilert_version
        if fp8 is None:
            fp8 = _OWN_VERSIONS * (1 + self.draft_layers) + self.main_layers * 100
        return fp8 + (_BF16_VERSION if dtype == "bf16" else 0)
