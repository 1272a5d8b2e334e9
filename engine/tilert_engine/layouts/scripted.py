"""The layout of the engines by script: a prompt's ids, so that a hand-off runs without torch."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from tilert_engine.scripted import ScriptedKV
from tilert_stream.errors import EngineFault

from .abc import Plane
from .planes import Geometry, checked_buffer

if TYPE_CHECKING:
    from tilert_engine.scripted import ScriptedDecode, ScriptedPrefill

    from .abc import Description, Row

__all__ = ("ScriptedLayout",)

_ID_BYTES: Final = 4
_VERSION: Final = 1


class ScriptedLayout:
    """One plane of one layer: little-endian int32 ids, a row a token.

    :raises ~tilert_stream.errors.ConfigError: ``max_seq_len`` is below 1.
    """

    name = "scripted"
    sender_ranks: tuple[int, ...] = (0,)

    def __init__(self, max_seq_len: int) -> None:
        self._geometry = Geometry((Plane("ids", 1, 1, _ID_BYTES),), max_seq_len)

    @classmethod
    def of(cls, engine: ScriptedPrefill | ScriptedDecode) -> ScriptedLayout:
        """The layout of an engine's KV."""
        return cls(engine.max_seq_len)

    @property
    def max_seq_len(self) -> int:
        """As the contract."""
        return self._geometry.max_seq_len

    @property
    def planes(self) -> tuple[Plane, ...]:
        """As the contract."""
        return self._geometry.planes

    @property
    def region_bytes(self) -> int:
        """As the contract."""
        return self._geometry.region_bytes

    def describe(self) -> Description:
        """As the contract."""
        return {
            "kind": self.name,
            "version": _VERSION,
            "dtype": "int32",
            "layers": 1,
            "senders": 1,
        }

    def sized(self, max_seq_len: int) -> ScriptedLayout:
        """As the contract."""
        return ScriptedLayout(max_seq_len)

    def staging_bytes(self, seq_len: int, rank: int = 0) -> int:
        """As the contract."""
        return self._geometry.staging_bytes(seq_len, rank)

    def plan(self, seq_len: int, rank: int = 0) -> tuple[Row, ...]:
        """As the contract."""
        return self._geometry.plan(seq_len, rank)

    def pack(self, kv: object, staging: memoryview, rank: int = 0) -> int:
        """As the contract."""
        if not isinstance(kv, ScriptedKV):
            raise EngineFault(f"the scripted layout takes ScriptedKV, not {type(kv).__name__}")
        seq_len = len(kv.prompt_ids)
        target = checked_buffer("staging", staging, self.staging_bytes(seq_len, rank))
        try:
            struct.pack_into(f"<{seq_len}i", target, 0, *kv.prompt_ids)
        except struct.error:
            raise EngineFault("the prompt has a token id that does not fit into int32") from None
        return seq_len

    def unpack(self, region: memoryview, seq_len: int) -> ScriptedKV:
        """As the contract; a copy."""
        self._geometry.check(seq_len)
        source = checked_buffer("region", region, self.region_bytes)
        return ScriptedKV(struct.unpack_from(f"<{seq_len}i", source))
