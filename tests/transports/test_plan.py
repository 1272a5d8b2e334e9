from __future__ import annotations

import array
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilert_transports.abc import HostBuffer, Region
from tilert_transports.errors import PlanInvalid
from tilert_transports.plan import Plan, Row

SIZE = 400
REGION = Region(0, 0, SIZE)


@st.composite
def plans(draw: st.DrawFn) -> list[Row]:
    """Rows that never write to one byte twice, many of them touching, in any order."""
    rows: list[Row] = []
    target = draw(st.integers(0, 5))
    source = draw(st.integers(0, 50))
    for nbytes in draw(st.lists(st.integers(1, 9), min_size=1, max_size=20)):
        rows.append((source, target, nbytes))
        target += nbytes + draw(st.sampled_from([0, 0, 1, 4]))
        source = draw(st.sampled_from([source + nbytes, source + nbytes, 0, 17]))
    return draw(st.permutations(rows))


def copied(rows: tuple[Row, ...] | list[Row]) -> bytes:
    source = bytes(range(1, 251)) * 2
    target = bytearray(SIZE)
    for from_, to, nbytes in rows:
        target[to : to + nbytes] = source[from_ : from_ + nbytes]
    return bytes(target)


@given(plans())
def test_merging_changes_no_byte(rows: list[Row]) -> None:
    plan = Plan(rows)
    assert copied(plan.segments) == copied(rows)
    assert plan.nbytes == sum(nbytes for _, _, nbytes in rows)
    assert plan.rows == tuple(rows)


@given(plans())
def test_no_two_segments_could_merge_any_more(rows: list[Row]) -> None:
    for (source, target, nbytes), after in itertools.pairwise(Plan(rows).segments):
        assert target + nbytes <= after[1]
        assert (source + nbytes, target + nbytes) != after[:2]


@given(plans())
def test_an_int64_array_is_the_same_plan(rows: list[Row]) -> None:
    assert Plan.from_buffer(np.array(rows, dtype=np.int64)).rows == tuple(rows)
    flat = memoryview(array.array("q", itertools.chain.from_iterable(rows)))
    shaped = flat.cast("B").cast("q", (len(rows), 3))
    assert Plan.from_buffer(shaped).rows == tuple(rows)


@given(plans(), st.data())
def test_two_rows_that_write_to_one_byte_are_refused(rows: list[Row], data: st.DataObject) -> None:
    _, target, nbytes = data.draw(st.sampled_from(rows))
    byte = data.draw(st.integers(target, target + nbytes - 1))
    with pytest.raises(PlanInvalid, match=r"rows \d+ and \d+ of the plan both write to target"):
        Plan([*rows, (0, byte, 1)])


def test_contiguous_layers_become_one_segment() -> None:
    plan = Plan([(layer * 656, layer * 656, 656) for layer in range(79)])
    assert plan.segments == ((0, 0, 79 * 656),)
    assert repr(plan) == "<Plan of 51824 bytes: 79 rows in 1 segments>"


def test_touching_on_one_side_only_is_no_merge() -> None:
    rows = ((0, 0, 4), (8, 4, 4), (12, 9, 4))
    assert Plan(rows).segments == rows


def test_whole() -> None:
    assert Plan.whole(9).segments == ((0, 0, 9),)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "the plan has no rows; a write needs at least one"),
        ([(0, 0, 1), (0, 5)], "row 1 of the plan has 2 values; 3 are needed"),
        ([(-1, 0, 1)], "row 0 of the plan: src_offset is -1, dst_offset 0; 0 or more is needed"),
        ([(0, -8, 1)], "row 0 of the plan: src_offset is 0, dst_offset -8; 0 or more is needed"),
        ([(0, 0, 0)], "row 0 of the plan: nbytes is 0; 1 or more is needed"),
        ([(0, 0, 1), (0, 1, -5)], "row 1 of the plan: nbytes is -5; 1 or more is needed"),
        (
            [(0, 2**63 - 1, 1)],
            f"row 0 of the plan: offset {2**63 - 1} + 1 bytes does not fit into 64 bits",
        ),
    ],
)
def test_malformed_rows_are_named(rows: list[tuple[int, ...]], message: str) -> None:
    with pytest.raises(PlanInvalid) as caught:
        Plan(rows)
    assert caught.value.message == message
    assert caught.value.settled


@pytest.mark.parametrize(
    ("buffer", "message"),
    [
        (np.zeros((2, 3), dtype=np.int32), "a plan's items are of format 'i'; int64 is needed"),
        (np.zeros((2, 3), dtype=np.uint64), "a plan's items are of format 'L'; int64 is needed"),
        (np.zeros((3, 2), dtype=np.int64), r"a plan's shape is (3, 2); (rows, 3) is needed"),
        (np.zeros(3, dtype=np.int64), r"a plan's shape is (3,); (rows, 3) is needed"),
        (
            np.zeros((3, 3), dtype=np.int64).T,
            "a plan's rows are strided; a C-contiguous array is needed",
        ),
    ],
)
def test_arrays_of_another_type_or_shape_are_refused(buffer: HostBuffer, message: str) -> None:
    with pytest.raises(PlanInvalid) as caught:
        Plan.from_buffer(buffer)
    assert caught.value.message == message


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            (390, 0, 11),
            "row 1 of the plan: src_offset 390 + 11 bytes = 401, but the source region has"
            " 400 bytes",
        ),
        (
            (0, 400, 1),
            "row 1 of the plan: dst_offset 400 + 1 bytes = 401, but the target region has"
            " 400 bytes",
        ),
    ],
)
def test_a_row_that_leaves_its_region_is_named(row: Row, message: str) -> None:
    with pytest.raises(PlanInvalid) as caught:
        Plan([(0, 399, 1), row]).check(REGION, REGION, 99)
    assert caught.value.message == message


def test_the_last_byte_is_inside() -> None:
    Plan([(399, 399, 1), (0, 0, 399)]).check(REGION, REGION, 2)


def test_descriptors_are_counted_after_merging() -> None:
    plan = Plan([(0, 0, 1), (1, 1, 1), (9, 5, 1), (20, 9, 1)])
    plan.check(REGION, REGION, 3)
    with pytest.raises(PlanInvalid) as caught:
        plan.check(REGION, REGION, 2)
    assert caught.value.message == (
        "the plan has 3 segments after merging, this transport takes 2; split it"
    )
