"""The contract of a KV layout: an engine's KV object → packed staging → region → KV object.

Prefill packs its KV cache into a staging buffer, plane after plane without gaps; a transport copies
the rows of ``plan`` from there into a landing region of the decode node, whose planes have room for
``max_seq_len`` tokens; there ``unpack`` makes what the decode engine's ``open`` takes. All numbers
are bytes or tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

    import torch

__all__ = ("Description", "DeviceLayout", "KVLayout", "Landed", "Plane", "Row")

Description: TypeAlias = "Mapping[str, str | int | bool]"
"""A layout, field by field. Two nodes whose descriptions are equal can hand over."""

Landed: TypeAlias = "memoryview | torch.Tensor"
"""A landing region's bytes: in host memory, or uint8 ``[bytes]`` on a device."""

Row: TypeAlias = tuple[int, int, int]
"""(source offset in the staging, target offset in the region, bytes)."""


@dataclass(frozen=True, slots=True)
class Plane:
    """One kind of row that every layer has: keys, values, an indexer's pages."""

    name: str
    layers: int
    row_tokens: int
    """Tokens in a row: 1, or a page's."""
    row_bytes: int
    rank: int = 0
    """The sender that fills it, an index into ``KVLayout.sender_ranks``."""

    def rows(self, tokens: int) -> int:
        """Rows that ``tokens`` tokens take in one layer; the last page may be partly filled."""
        return -(-tokens // self.row_tokens)

    def __str__(self) -> str:
        return f"{self.layers} layers, {self.row_bytes} B every {self.row_tokens} tokens"


@runtime_checkable
class KVLayout(Protocol):
    """Where each byte of a KV cache goes. Immutable, and free of any request's state.

    Both sides make one from their own configuration. Staging buffers and regions are host memory:
    writable, contiguous memoryviews of bytes; ``ValueError`` says that one is not or is too small.
    """

    @property
    def name(self) -> str:
        """As the registry knows it: ``gqa``, ``scripted``."""
        ...

    @property
    def max_seq_len(self) -> int:
        """Tokens that a landing region has room for."""
        ...

    @property
    def sender_ranks(self) -> tuple[int, ...]:
        """The ranks of prefill that send; a hand-off is complete with the last of them."""
        ...

    @property
    def planes(self) -> tuple[Plane, ...]:
        """In the order in which they lie in a region: all layers of one, then of the next."""
        ...

    @property
    def region_bytes(self) -> int:
        """The size of a landing region."""
        ...

    def describe(self) -> Description:
        """All that must be equal on both sides; ``max_seq_len`` need not be."""
        ...

    def sized(self, max_seq_len: int) -> Self:
        """The same layout with other regions: a sender plans for its receiver's."""
        ...

    def staging_bytes(self, seq_len: int, rank: int = 0) -> int:
        """Bytes that ``rank`` sends for a prompt of ``seq_len`` tokens.

        :raises ~tilert_stream.errors.InvalidRequest: ``seq_len`` is below 1 or does not fit.
        :raises ValueError: ``rank`` sends nothing.
        """
        ...

    def plan(self, seq_len: int, rank: int = 0) -> tuple[Row, ...]:
        """The copies that bring ``rank``'s staging into a region, by rising target offset.

        :raises ~tilert_stream.errors.InvalidRequest: ``seq_len`` is below 1 or does not fit.
        :raises ValueError: ``rank`` sends nothing.
        """
        ...

    def pack(self, kv: object, staging: memoryview, rank: int = 0) -> int:
        """Copy ``rank``'s part of ``kv`` into the beginning of ``staging``; the prompt's tokens.

        :raises ~tilert_stream.errors.EngineFault: a KV object of another kind, model or shape.
        :raises ~tilert_stream.errors.InvalidRequest: it has too many tokens.
        """
        ...

    def unpack(self, region: memoryview, seq_len: int) -> object:
        """What the paired decode engine's ``open`` takes.

        It may be a view of ``region``: the region must keep its bytes until ``open`` has returned.

        :raises ~tilert_stream.errors.EngineFault: the bytes cannot be a KV cache.
        :raises ~tilert_stream.errors.InvalidRequest: ``seq_len`` is below 1 or does not fit.
        """
        ...


@runtime_checkable
class DeviceLayout(Protocol):
    """A layout whose regions may lie in a device's memory."""

    def unpack_device(self, region: torch.Tensor, seq_len: int) -> object:
        """As ``KVLayout.unpack``, device to device; blocks until ``region`` has been read.

        What comes back shares no memory with it.

        :param region: uint8 ``[bytes]``, contiguous.
        :raises ~tilert_stream.errors.EngineFault: the bytes cannot be a KV cache.
        :raises ~tilert_stream.errors.InvalidRequest: ``seq_len`` is below 1 or does not fit.
        :raises ValueError: ``region`` is no such tensor, or too small.
        """
        ...
