"""A KV cache that has landed, brought into the engine: bytes of a region in, an open slot out.

The decode engine's owner thread does it, so that no copy and no checksum holds the event loop up.
"""

from __future__ import annotations

import zlib
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar, runtime_checkable

from tilert_stream.abc import GrammarEngine, capabilities_of
from tilert_stream.errors import EngineFault

from .abc import DeviceLayout

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from tilert_stream.abc import DecodeEngine
    from tilert_stream.events import Capability, Harvest, Limits, Sampling

    from .abc import KVLayout, Landed

__all__ = ("LandedKV", "LandingDecode", "ReadingEngine", "ToldEngine")

SequenceT = TypeVar("SequenceT")


@dataclass(frozen=True, slots=True, eq=False)
class LandedKV:
    """What a decode node hands to its engine."""

    region: Landed
    """A whole landing region."""
    tokens: int
    """Of the prompt."""
    checksums: Mapping[int, int] = field(default_factory=dict[int, int])
    """CRC-32 by rank, of the ranks that gave one, over what each has sent."""
    last_token: int | None = None
    """The prompt's last token; None where prefill has not told it."""
    on_converted: Callable[[], None] | None = None
    """Is told, on the owner's thread, that the bytes have become the engine's KV object."""


@runtime_checkable
class ToldEngine(Protocol):
    """An engine that begins with the prompt's last token."""

    def told(self, kv: object, last_token: int, /) -> object:
        """What ``open`` takes: ``kv`` as the layout unpacks it, and the token."""
        ...


@runtime_checkable
class ReadingEngine(Protocol):
    """An engine that reads landed KV caches the faster for having been shown their memory."""

    def landing(self, memory: memoryview, /) -> AbstractContextManager[None]:
        """Make host memory ready in which KV caches will land, as long as the block runs.

        Blocks, for seconds where it is large.
        """
        ...


class LandingDecode(Generic[SequenceT]):
    """A ``DecodeEngine`` that takes ``LandedKV`` in place of its own KV object."""

    def __init__(self, engine: DecodeEngine[SequenceT], layout: KVLayout) -> None:
        self._engine = engine
        self._layout = layout

    @property
    def slots(self) -> int:
        """As the engine's."""
        return self._engine.slots

    @property
    def max_seq_len(self) -> int:
        """As the engine's."""
        return self._engine.max_seq_len

    @property
    def capabilities(self) -> frozenset[Capability]:
        """As the engine's."""
        return capabilities_of(self._engine)

    def check_grammar(self, grammar: str, param: str, /) -> None:
        """As the engine's; one that follows no grammar is never asked."""
        if isinstance(self._engine, GrammarEngine):
            self._engine.check_grammar(grammar, param)

    def landing(self, memory: memoryview) -> AbstractContextManager[None]:
        """Show the engine the memory in which KV caches will land."""
        engine = self._engine
        return engine.landing(memory) if isinstance(engine, ReadingEngine) else nullcontext()

    def open(
        self, slot: int, kv: object, first_token: int, limits: Limits, sampling: Sampling, /
    ) -> SequenceT:
        """Check what has landed, and import it.

        :raises ~tilert_stream.errors.EngineFault: a checksum is another, or as the engine's own.
        """
        if not isinstance(kv, LandedKV):
            raise EngineFault(f"this engine takes a LandedKV, not {type(kv).__name__}")
        for rank, expected in kv.checksums.items():
            found = self._checksum(kv, rank)
            if found != expected:
                raise EngineFault(
                    f"the KV cache from rank {rank} has the checksum {found:#010x}, prefill says"
                    f" {expected:#010x}: it was damaged on its way; try again"
                )
        unpacked = self._unpack(kv)
        if kv.on_converted is not None:
            kv.on_converted()
        if kv.last_token is not None and isinstance(self._engine, ToldEngine):
            unpacked = self._engine.told(unpacked, kv.last_token)
        return self._engine.open(slot, unpacked, first_token, limits, sampling)

    def _unpack(self, kv: LandedKV) -> object:
        if isinstance(kv.region, memoryview):
            return self._layout.unpack(kv.region, kv.tokens)
        if not isinstance(self._layout, DeviceLayout):
            raise EngineFault(
                f"the {self._layout.name} layout reads host memory alone; start the decode node"
                " with --landing-memory host"
            )
        return self._layout.unpack_device(kv.region, kv.tokens)

    def _checksum(self, kv: LandedKV, rank: int) -> int:
        checksum = 0
        for _, offset, nbytes in self._layout.plan(kv.tokens, rank):
            piece = kv.region[offset : offset + nbytes]
            held = piece if isinstance(piece, memoryview) else piece.cpu().numpy().data
            checksum = zlib.crc32(held, checksum)
        return checksum

    def advance(self, sequence: SequenceT, /) -> Harvest:
        """As the engine's."""
        return self._engine.advance(sequence)

    def close(self, sequence: SequenceT, /) -> None:
        """As the engine's."""
        self._engine.close(sequence)
