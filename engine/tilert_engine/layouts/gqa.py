"""The layout of grouped-query attention: a key plane and a value plane, rows of heads a token.

In: the torch engine's ``KVCache``, or rows that a connector writes into ``staged``. Out: a
``KVCache`` whose tensors are views of the region (of one sender; of several, their heads are put
together in one copy). Torch is imported only when tensors are asked for.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, cast

from tilert_stream.errors import ConfigError, EngineFault

from .abc import Plane
from .planes import Geometry, checked_buffer

if TYPE_CHECKING:
    import torch

    from tilert_engine.models.description import ModelDescription
    from tilert_engine.torch.kv_cache import KVCache

    from .abc import Description, Row

__all__ = ("GqaLayout", "StagedKV")

_VERSION: Final = 1
_ITEM_BYTES: Final[dict[str, int]] = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class StagedKV:
    """Views of a staging buffer, each ``[layers, seq_len, heads of the rank, head_dim]``."""

    keys: torch.Tensor
    """Rotated."""
    values: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class GqaLayout:
    """Planes ``[layer, token, head, head_dim]`` of keys, then of values.

    With several senders each has planes of its own for its part of the heads, so that whatever a
    sender writes is one run of bytes a layer.

    :raises ~tilert_stream.errors.ConfigError: a size below 1, an unknown dtype, or heads that
        cannot be shared out evenly.
    """

    model: str
    """The checkpoint's name: equal shapes do not make equal models."""
    layers: int
    kv_heads: int
    """Of the whole model."""
    head_dim: int
    dtype: str
    """``float32``, ``bfloat16`` or ``float16``."""
    max_seq_len: int
    senders: int = 1
    """Ranks of prefill that send, each its ``kv_heads / senders`` heads."""
    _geometry: Geometry = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.dtype not in _ITEM_BYTES:
            raise ConfigError(
                f"the KV cache's dtype is {self.dtype!r}; give {', '.join(_ITEM_BYTES)}"
            )
        for name in ("layers", "kv_heads", "head_dim", "senders"):
            value = cast("int", getattr(self, name))
            if value < 1:
                raise ConfigError(f"the KV layout's {name} is {value}; it must be at least 1")
        if self.kv_heads % self.senders:
            raise ConfigError(
                f"{self.kv_heads} key/value heads cannot be shared out among {self.senders}"
                " senders; set prefill's --tensor-parallel-size to a divisor"
            )
        row_bytes = self._heads * self.head_dim * _ITEM_BYTES[self.dtype]
        planes = tuple(
            Plane(f"{kind}{rank}", self.layers, 1, row_bytes, rank)
            for kind in ("k", "v")
            for rank in range(self.senders)
        )
        object.__setattr__(self, "_geometry", Geometry(planes, self.max_seq_len))

    @classmethod
    def of(
        cls, model: ModelDescription, *, dtype: str, max_seq_len: int, senders: int = 1
    ) -> GqaLayout:
        """The layout of the torch engines' KV cache on ``model``, computed in ``dtype``."""
        return cls(
            model=model.name,
            layers=model.config.layers,
            kv_heads=model.config.kv_heads,
            head_dim=model.config.head_dim,
            dtype=dtype,
            max_seq_len=max_seq_len,
            senders=senders,
        )

    @property
    def name(self) -> str:
        """As the contract."""
        return "gqa"

    @property
    def sender_ranks(self) -> tuple[int, ...]:
        """As the contract."""
        return tuple(range(self.senders))

    @property
    def planes(self) -> tuple[Plane, ...]:
        """As the contract."""
        return self._geometry.planes

    @property
    def region_bytes(self) -> int:
        """As the contract."""
        return self._geometry.region_bytes

    @property
    def _heads(self) -> int:
        return self.kv_heads // self.senders

    @property
    def _torch_dtype(self) -> torch.dtype:
        import torch

        return cast("torch.dtype", getattr(torch, self.dtype))

    def describe(self) -> Description:
        """As the contract."""
        return {
            "kind": self.name,
            "version": _VERSION,
            "model": self.model,
            "dtype": self.dtype,
            "layers": self.layers,
            "kv_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "senders": self.senders,
        }

    def sized(self, max_seq_len: int) -> GqaLayout:
        """As the contract."""
        return replace(self, max_seq_len=max_seq_len)

    def staging_bytes(self, seq_len: int, rank: int = 0) -> int:
        """As the contract."""
        return self._geometry.staging_bytes(seq_len, rank)

    def plan(self, seq_len: int, rank: int = 0) -> tuple[Row, ...]:
        """As the contract."""
        return self._geometry.plan(seq_len, rank)

    def staged(self, staging: memoryview, seq_len: int, rank: int = 0) -> StagedKV:
        """``rank``'s staging as tensors to write to.

        :raises ValueError: ``staging`` is not writable bytes, or too small.
        :raises ~tilert_stream.errors.InvalidRequest: ``seq_len`` is below 1 or does not fit.
        """
        import torch

        target = checked_buffer("staging", staging, self.staging_bytes(seq_len, rank))
        flat = torch.frombuffer(target, dtype=self._torch_dtype)
        shape = (2, self.layers, seq_len, self._heads, self.head_dim)
        keys, values = flat.view(shape)
        return StagedKV(keys, values)

    def pack(self, kv: object, staging: memoryview, rank: int = 0) -> int:
        """As the contract."""
        cache = self._checked(kv)
        staged = self.staged(staging, cache.seq_len, rank)
        heads = slice(rank * self._heads, (rank + 1) * self._heads)
        staged.keys.copy_(cache.keys[:, heads].transpose(1, 2))
        staged.values.copy_(cache.values[:, heads].transpose(1, 2))
        return cache.seq_len

    def unpack(self, region: memoryview, seq_len: int) -> KVCache:
        """As the contract; a view of ``region`` where there is one sender."""
        import torch

        from tilert_engine.torch.kv_cache import KVCache

        self._geometry.check(seq_len)
        source = checked_buffer("region", region, self.region_bytes)
        flat = torch.frombuffer(source, dtype=self._torch_dtype)
        return KVCache(self.model, *self._filled(flat, seq_len))

    def unpack_device(self, region: torch.Tensor, seq_len: int) -> KVCache:
        """As the contract of ``DeviceLayout``."""
        from tilert_engine.torch.kv_cache import KVCache

        from .device_region import checked_tensor, read_region

        self._geometry.check(seq_len)
        flat = checked_tensor(region, self.region_bytes).view(self._torch_dtype)

        def read() -> tuple[torch.Tensor, ...]:
            keys, values = self._filled(flat, seq_len)
            return keys.clone(), values.clone()

        return KVCache(self.model, *read_region(region, read))

    def _filled(self, flat: torch.Tensor, seq_len: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values, ``[layers, heads, seq_len, head_dim]`` each."""
        shape = (2, self.senders, self.layers, self.max_seq_len, self._heads, self.head_dim)
        filled = flat.view(shape)[:, :, :, :seq_len]
        if self.senders == 1:
            keys, values = filled[:, 0].transpose(2, 3)
        else:
            # [2, sender, layer, token, head, dim] -> [2, layer, (sender, head), token, dim]
            whole = (2, self.layers, self.kv_heads, seq_len, self.head_dim)
            keys, values = filled.permute(0, 2, 1, 4, 3, 5).reshape(whole)
        return keys, values

    def _checked(self, kv: object) -> KVCache:
        from tilert_engine.torch.kv_cache import KVCache

        if not isinstance(kv, KVCache):
            raise EngineFault(f"the gqa layout takes a KVCache, not {type(kv).__name__}")
        needed = (self.layers, self.kv_heads, kv.seq_len, self.head_dim)
        for what, got, want in (
            ("model", kv.model, self.model),
            ("shape of keys", tuple(kv.keys.shape), needed),
            ("shape of values", tuple(kv.values.shape), needed),
            ("dtype of keys", kv.keys.dtype, self._torch_dtype),
            ("dtype of values", kv.values.dtype, self._torch_dtype),
        ):
            if got != want:
                raise EngineFault(
                    f"the KV cache's {what} is {got}, the layout's is {want}; make the layout from"
                    " the engine's own checkpoint"
                )
        return kv
