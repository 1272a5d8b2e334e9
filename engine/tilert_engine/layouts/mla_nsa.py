"""The layout of MLA with an NSA indexer: GLM-5, DeepSeek-V3.2, and small models of their shape.

In: a ``CachedKV`` of a prefill engine, or vLLM's paged caches through ``staged`` (see
``mla_nsa_paged``). Out: an ``ImportedKV``. One description drives both ends and the handshake.

A region is TileRT's receive buffer: all layers' kv rows, then all pe rows, then all ki pages.
Torch is imported only when tensors are asked for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Literal, cast

from tilert_stream.errors import ConfigError, EngineFault

from .abc import Plane
from .mla_nsa_model import (
    PAGE_BYTES,
    PAGE_TOKENS,
    ROPE_BYTES,
    MlaNsaModel,
    latent_bytes,
    row_bytes,
)
from .planes import Geometry, checked_buffer

if TYPE_CHECKING:
    import torch

    from .abc import Description, Row
    from .mla_nsa_cache import CachedKV, ImportedKV, WirePlanes
    from .mla_nsa_model import CacheDtype

__all__ = ("MlaNsaLayout",)

_IMPORT_DTYPES: Final = ("bfloat16", "float32")


@dataclass(frozen=True, slots=True, kw_only=True)
class MlaNsaLayout:
    """Planes kv (latents), pe (rope) and ki (indexer pages of 64 tokens), each layer by layer.

    Rank 0 alone sends: tensor-parallel ranks all hold the same latents.

    :raises ~tilert_stream.errors.ConfigError: ``max_seq_len`` is below 1, or an unknown dtype.
    """

    model: MlaNsaModel
    dtype: CacheDtype
    """Of the latents; rope is always bf16, indexer keys are always fp8."""
    max_seq_len: int
    import_dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """What ``unpack`` yields. The decode node's own affair, like ``device``."""
    device: str = "cpu"
    """Where ``unpack`` puts it; on CUDA it is enqueued on the current stream."""
    refuse_nan: bool = False
    """Whether ``unpack`` refuses values that are not finite; reads back from the device."""
    _geometry: Geometry = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.dtype not in ("fp8_ds_mla", "bf16"):
            raise ConfigError(f"the KV cache's dtype is {self.dtype!r}; give fp8_ds_mla or bf16")
        if self.import_dtype not in _IMPORT_DTYPES:
            raise ConfigError(
                f"the KV cache's import_dtype is {self.import_dtype!r}; give"
                f" {' or '.join(_IMPORT_DTYPES)}"
            )
        layers = self.model.layers
        planes = (
            Plane("kv", layers, 1, latent_bytes(self.dtype)),
            Plane("pe", layers, 1, ROPE_BYTES),
            Plane("ki", layers, PAGE_TOKENS, PAGE_BYTES),
        )
        object.__setattr__(self, "_geometry", Geometry(planes, self.max_seq_len))

    @property
    def name(self) -> str:
        """As the contract."""
        return "mla_nsa"

    @property
    def sender_ranks(self) -> tuple[int, ...]:
        """As the contract."""
        return (0,)

    @property
    def planes(self) -> tuple[Plane, ...]:
        """As the contract."""
        return self._geometry.planes

    @property
    def region_bytes(self) -> int:
        """As the contract."""
        return self._geometry.region_bytes

    @property
    def version(self) -> int:
        """TileRT's layout version (10, 1010, 11; 40 more for bf16), or that of an own model."""
        return self.model.version(self.dtype)

    def bases(self) -> dict[str, int]:
        """``kv_base``, ``pe_base``, ``ki_base``: bytes from a region's beginning.

        A ``tilert-pd`` hello has them as addresses: the region's own is to be added.
        """
        pairs = zip(self.planes, self._geometry.bases, strict=True)
        return {f"{plane.name}_base": base for plane, base in pairs}

    def describe(self) -> Description:
        """As the contract."""
        return {
            "kind": self.name,
            "version": self.version,
            "model": self.model.name,
            "dtype": self.dtype,
            "block_size": PAGE_TOKENS,
            "layers": self.model.layers,
            "draft_layers": self.model.draft_layers,
            "senders": 1,
        }

    def sized(self, max_seq_len: int) -> MlaNsaLayout:
        """As the contract."""
        return replace(self, max_seq_len=max_seq_len)

    def staging_bytes(self, seq_len: int, rank: int = 0) -> int:
        """As the contract."""
        return self._geometry.staging_bytes(seq_len, rank)

    def plan(self, seq_len: int, rank: int = 0) -> tuple[Row, ...]:
        """As the contract: three writes a layer, all layers of a plane before the next plane."""
        return self._geometry.plan(seq_len, rank)

    def staged(self, staging: memoryview, seq_len: int) -> WirePlanes:
        """A staging buffer as planes to write to.

        :raises ValueError: ``staging`` is not writable bytes, or too small.
        :raises ~tilert_stream.errors.InvalidRequest: ``seq_len`` is below 1 or does not fit.
        """
        target = checked_buffer("staging", staging, self.staging_bytes(seq_len))
        return self._views(target, seq_len)

    def landed(self, region: memoryview, seq_len: int) -> WirePlanes:
        """A region's planes, cut to a prompt's tokens.

        :raises ValueError: ``region`` is not writable bytes, or too small.
        :raises ~tilert_stream.errors.InvalidRequest: ``seq_len`` is below 1 or does not fit.
        """
        self._geometry.check(seq_len)
        source = checked_buffer("region", region, self.region_bytes)
        return self._cut(self._views(source, self.max_seq_len), seq_len)

    def _cut(self, whole: WirePlanes, seq_len: int) -> WirePlanes:
        from .mla_nsa_cache import WirePlanes

        return WirePlanes(
            *(
                tensor[:, : plane.rows(seq_len)]
                for tensor, plane in zip(whole, self.planes, strict=True)
            )
        )

    def pack(self, kv: object, staging: memoryview, rank: int = 0) -> int:
        """As the contract; takes a ``CachedKV``, on any device."""
        cached = self._checked(kv)
        self._geometry.plan(cached.seq_len, rank)
        for target, source in zip(self.staged(staging, cached.seq_len), cached.planes, strict=True):
            target.copy_(source)
        return cached.seq_len

    def unpack(self, region: memoryview, seq_len: int) -> ImportedKV:
        """As the contract; pe, and kv of a bf16 cache, are views of ``region`` on CPU in bf16."""
        return self.imported(self.landed(region, seq_len))

    def unpack_device(self, region: torch.Tensor, seq_len: int) -> ImportedKV:
        """As the contract of ``DeviceLayout``."""
        from .device_region import checked_tensor, read_region
        from .mla_nsa_cache import ImportedKV

        self._geometry.check(seq_len)
        flat = checked_tensor(region, self.region_bytes)
        planes = self._cut(self._planes_of(flat, self.max_seq_len), seq_len)

        def read() -> tuple[torch.Tensor, ...]:
            taken = self.imported(planes)
            # Where nothing is to be converted they are views.
            return taken.ki, taken.kv.clone(), taken.pe.clone()

        return ImportedKV(self.model.name, *read_region(region, read))

    def imported(self, planes: WirePlanes) -> ImportedKV:
        """What the decode engine takes: ``planes`` as ``import_dtype`` on ``device``.

        :raises ~tilert_stream.errors.EngineFault: with ``refuse_nan``, a value is not finite.
        """
        import torch

        from .mla_nsa_cache import import_planes, refuse_nan

        taken = import_planes(
            self.model.name,
            planes,
            dtype=cast("torch.dtype", getattr(torch, self.import_dtype)),
            device=torch.device(self.device),
        )
        if self.refuse_nan:
            refuse_nan(taken)
        return taken

    def _views(self, buffer: memoryview, seq_len: int) -> WirePlanes:
        import torch

        return self._planes_of(torch.frombuffer(buffer, dtype=torch.uint8), seq_len)

    def _planes_of(self, flat: torch.Tensor, seq_len: int) -> WirePlanes:
        """Bytes as planes of ``seq_len`` tokens without gaps."""
        from .mla_nsa_cache import WirePlanes

        views: list[torch.Tensor] = []
        start = 0
        for plane in self.planes:
            shape = (plane.layers, plane.rows(seq_len), plane.row_bytes)
            end = start + math.prod(shape)
            views.append(flat[start:end].view(shape))
            start = end
        return WirePlanes(*views)

    def _checked(self, kv: object) -> CachedKV:
        import torch

        from .mla_nsa_cache import CachedKV

        if not isinstance(kv, CachedKV):
            raise EngineFault(f"the mla_nsa layout takes a CachedKV, not {type(kv).__name__}")
        layers, pages = self.model.layers, self.planes[2].rows(kv.seq_len)
        for what, got, want in (
            ("model", kv.model, self.model.name),
            ("shape of rows", tuple(kv.rows.shape), (layers, kv.seq_len, row_bytes(self.dtype))),
            ("shape of pages", tuple(kv.pages.shape), (layers, pages, PAGE_BYTES)),
            ("dtype of rows", kv.rows.dtype, torch.uint8),
            ("dtype of pages", kv.pages.dtype, torch.uint8),
        ):
            if got != want:
                raise EngineFault(
                    f"the KV cache's {what} is {got}, the layout's is {want}; make the layout from"
                    " the engine's own model and --kv-cache-dtype"
                )
        return kv
