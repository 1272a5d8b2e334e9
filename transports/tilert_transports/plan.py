"""What a write copies: rows of (source offset, target offset, bytes).

In: rows in any order, checked once. Out: segments in the order of their targets, where rows that
touch on both sides have become one. A plan is relative to its two regions, so one plan serves every
request of the same shape.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from .errors import PlanInvalid
from .host_memory import host_view

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .abc import HostBuffer, Region

__all__ = ("Plan", "Row")

Row: TypeAlias = "tuple[int, int, int]"
"""(source offset, target offset, bytes)."""

INT64_MAX = 2**63 - 1


class Plan:
    """Checked and merged rows. Immutable.

    :param rows: (source offset, target offset, bytes) each.
    :raises PlanInvalid: no rows, a negative offset, a row without bytes, a value past int64, or
        two rows that write to the same byte.
    """

    __slots__ = ("_rows", "_segments", "_source_end", "_target_end", "nbytes")

    def __init__(self, rows: Iterable[Sequence[int]]) -> None:
        self._rows = tuple(_row(index, row) for index, row in enumerate(rows))
        if not self._rows:
            raise PlanInvalid("the plan has no rows; a write needs at least one")
        self._segments = _merged(self._rows)
        self._source_end = max(source + nbytes for source, _, nbytes in self._segments)
        self._target_end = max(target + nbytes for _, target, nbytes in self._segments)
        self.nbytes = sum(nbytes for _, _, nbytes in self._segments)
        """All bytes together."""

    @classmethod
    def from_buffer(cls, buffer: HostBuffer) -> Plan:
        """From N×3 int64 in C order: a numpy array, or a CPU tensor's ``numpy()``.

        :raises PlanInvalid: another type or shape; or as for rows.
        :raises RegionInvalid: it has no buffer.
        """
        view = host_view(buffer)
        # numpy's int64 is "l" on Linux, array's and struct's 64-bit integer is "q".
        if view.format not in ("q", "l") or view.itemsize != 8:
            raise PlanInvalid(f"a plan's items are of format {view.format!r}; int64 is needed")
        if view.ndim != 2 or view.shape is None or view.shape[1] != 3:
            raise PlanInvalid(f"a plan's shape is {view.shape}; (rows, 3) is needed")
        if not view.c_contiguous:
            raise PlanInvalid("a plan's rows are strided; a C-contiguous array is needed")
        flat = view.cast("B").cast("q").tolist()
        return cls(zip(flat[0::3], flat[1::3], flat[2::3], strict=True))

    @classmethod
    def whole(cls, nbytes: int) -> Plan:
        """The first ``nbytes`` of one region to the beginning of another."""
        return cls([(0, 0, nbytes)])

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows as they were given."""
        return self._rows

    @property
    def segments(self) -> tuple[Row, ...]:
        """The merged rows, by rising target offset."""
        return self._segments

    def check(self, source: Region, target: Region, max_descriptors: int) -> None:
        """Prove that a write between these regions stays inside them.

        :raises PlanInvalid: naming the first row that does not, and both values.
        """
        if self._source_end > source.nbytes or self._target_end > target.nbytes:
            self._name_the_row(source, target)
        if len(self._segments) > max_descriptors:
            raise PlanInvalid(
                f"the plan has {len(self._segments)} segments after merging, this transport"
                f" takes {max_descriptors}; split it"
            )

    def _name_the_row(self, source: Region, target: Region) -> None:
        for index, (source_offset, target_offset, nbytes) in enumerate(self._rows):
            for side, field, offset, region in (
                ("source", "src_offset", source_offset, source),
                ("target", "dst_offset", target_offset, target),
            ):
                if offset + nbytes > region.nbytes:
                    raise PlanInvalid(
                        f"row {index} of the plan: {field} {offset} + {nbytes} bytes ="
                        f" {offset + nbytes}, but the {side} region has {region.nbytes} bytes"
                    )

    def __repr__(self) -> str:
        return (
            f"<Plan of {self.nbytes} bytes:"
            f" {len(self._rows)} rows in {len(self._segments)} segments>"
        )


def _row(index: int, row: Sequence[int]) -> Row:
    if len(row) != 3:
        raise PlanInvalid(f"row {index} of the plan has {len(row)} values; 3 are needed")
    source, target, nbytes = row
    if source < 0 or target < 0:
        raise PlanInvalid(
            f"row {index} of the plan: src_offset is {source}, dst_offset {target};"
            " 0 or more is needed"
        )
    if nbytes < 1:
        raise PlanInvalid(f"row {index} of the plan: nbytes is {nbytes}; 1 or more is needed")
    if max(source, target) + nbytes > INT64_MAX:
        raise PlanInvalid(
            f"row {index} of the plan: offset {max(source, target)} + {nbytes} bytes does not fit"
            " into 64 bits"
        )
    return source, target, nbytes


def _merged(rows: tuple[Row, ...]) -> tuple[Row, ...]:
    # Sorted by target, all that can merge are neighbours, and so are all that overlap.
    order = sorted(range(len(rows)), key=lambda index: rows[index][1])
    segments: list[Row] = []
    last = order[0]
    source, target, nbytes = rows[last]
    for index in order[1:]:
        next_source, next_target, next_nbytes = rows[index]
        end = target + nbytes
        if next_target < end:
            raise PlanInvalid(
                f"rows {last} and {index} of the plan both write to target offset {next_target}"
            )
        if next_target == end and next_source == source + nbytes:
            nbytes += next_nbytes
        else:
            segments.append((source, target, nbytes))
            source, target, nbytes = next_source, next_target, next_nbytes
        last = index
    segments.append((source, target, nbytes))
    return tuple(segments)
