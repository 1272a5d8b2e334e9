"""KV layouts of nodes that are slow, for tests on whole clusters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.pd.cluster import LONGEST
from tilert_engine.layouts.scripted import ScriptedLayout

if TYPE_CHECKING:
    from typing import Self

    from tilert_stream.testing import Gate


class SlowlyPacked(ScriptedLayout):
    """A KV cache that waits at a gate before it leaves."""

    def __init__(self, gate: Gate) -> None:
        super().__init__(LONGEST)
        self._gate = gate

    def pack(self, kv: object, staging: memoryview, rank: int = 0) -> int:
        self._gate.pass_through(0)
        return super().pack(kv, staging, rank)

    def sized(self, max_seq_len: int) -> Self:
        assert max_seq_len == LONGEST
        return self
