"""The geometry that layouts share: planes → offsets in a region and in a packed staging.

A region holds plane after plane, in each all layers with room for ``max_seq_len`` tokens; a staging
holds what one rank sends, in the same order and without gaps.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

from tilert_stream.errors import ConfigError, ContextLengthExceeded, InvalidRequest

if TYPE_CHECKING:
    from .abc import Plane, Row

__all__ = ("Geometry", "checked_buffer")


class Geometry:
    """Where planes lie.

    :raises ~tilert_stream.errors.ConfigError: ``max_seq_len`` is below 1.
    """

    __slots__ = ("bases", "max_seq_len", "planes", "region_bytes")

    def __init__(self, planes: tuple[Plane, ...], max_seq_len: int) -> None:
        if max_seq_len < 1:
            raise ConfigError(f"max_seq_len is {max_seq_len}; it must be at least 1")
        self.planes = planes
        self.max_seq_len = max_seq_len
        *bases, self.region_bytes = accumulate(
            (plane.layers * plane.rows(max_seq_len) * plane.row_bytes for plane in planes),
            initial=0,
        )
        self.bases = tuple(bases)
        """Of each plane's first layer, bytes from the region's beginning."""

    def check(self, seq_len: int) -> None:
        """Refuse a prompt that cannot be in a region.

        :raises ~tilert_stream.errors.InvalidRequest: ``seq_len`` is below 1.
        :raises ~tilert_stream.errors.ContextLengthExceeded: above ``max_seq_len``.
        """
        if seq_len < 1:
            raise InvalidRequest(f"seq_len is {seq_len}; it must be from 1 to {self.max_seq_len}")
        if seq_len > self.max_seq_len:
            raise ContextLengthExceeded(
                f"seq_len is {seq_len}, above max_seq_len {self.max_seq_len}; send a shorter"
                " prompt, or raise --max-seq-len on both nodes"
            )

    def staging_bytes(self, seq_len: int, rank: int) -> int:
        """As ``KVLayout.staging_bytes``."""
        return sum(nbytes for _, _, nbytes in self.plan(seq_len, rank))

    def plan(self, seq_len: int, rank: int) -> tuple[Row, ...]:
        """As ``KVLayout.plan``."""
        self.check(seq_len)
        rows: list[Row] = []
        source = 0
        for base, plane in zip(self.bases, self.planes, strict=True):
            if plane.rank != rank:
                continue
            nbytes = plane.rows(seq_len) * plane.row_bytes
            stride = plane.rows(self.max_seq_len) * plane.row_bytes
            for layer in range(plane.layers):
                rows.append((source, base + layer * stride, nbytes))
                source += nbytes
        if not rows:
            ranks = sorted({plane.rank for plane in self.planes})
            raise ValueError(f"rank {rank} sends nothing; the layout's senders are {ranks}")
        return tuple(rows)


def checked_buffer(what: str, buffer: memoryview, needed: int) -> memoryview:
    """The first ``needed`` bytes of ``buffer``.

    :param what: what to call it in an error.
    :raises ValueError: it is read-only, no contiguous run of bytes, or too small.
    """
    if buffer.readonly or buffer.format != "B" or not buffer.c_contiguous or buffer.ndim != 1:
        raise ValueError(f"the {what} must be writable, contiguous bytes; cast it to 'B'")
    if buffer.nbytes < needed:
        raise ValueError(f"the {what} has {buffer.nbytes} bytes; {needed} are needed")
    return buffer[:needed]
