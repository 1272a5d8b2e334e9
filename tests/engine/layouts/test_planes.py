from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.layouts.carry import copy_rows
from tilert_engine.layouts.abc import Plane
from tilert_engine.layouts.gqa import GqaLayout
from tilert_engine.layouts.planes import Geometry, checked_buffer
from tilert_engine.layouts.scripted import ScriptedLayout
from tilert_stream.errors import ConfigError, ContextLengthExceeded, InvalidRequest
from tilert_transports.control.layout import differences

PAGED = (Plane("kv", 3, 1, 5), Plane("pe", 3, 1, 2), Plane("ki", 3, 4, 7))


@st.composite
def geometries(draw: st.DrawFn) -> tuple[Geometry, int, int]:
    """A geometry, a prompt's length that fits, and the number of ranks."""
    ranks = draw(st.integers(1, 3))
    planes = tuple(
        Plane(
            name=f"p{index}",
            layers=draw(st.integers(1, 5)),
            row_tokens=draw(st.integers(1, 5)),
            row_bytes=draw(st.integers(1, 5)),
            rank=index % ranks,
        )
        for index in range(ranks * draw(st.integers(1, 2)))
    )
    max_seq_len = draw(st.integers(1, 40))
    return Geometry(planes, max_seq_len), draw(st.integers(1, max_seq_len)), ranks


@given(geometries())
def test_each_staged_byte_lands_once_in_its_own_place(
    drawn: tuple[Geometry, int, int],
) -> None:
    geometry, seq_len, ranks = drawn
    hits = bytearray(geometry.region_bytes)
    for rank in range(ranks):
        end, last_target = 0, -1
        for source, target, nbytes in geometry.plan(seq_len, rank):
            assert source == end, "the staging has no gaps"
            assert target > last_target
            end, last_target = source + nbytes, target
            for byte in range(target, target + nbytes):
                hits[byte] += 1
        assert end == geometry.staging_bytes(seq_len, rank)
    expected = b"".join(
        (
            b"\1" * plane.rows(seq_len)
            + b"\0" * (plane.rows(geometry.max_seq_len) - plane.rows(seq_len))
        )
        .replace(b"\1", b"\1" * plane.row_bytes)
        .replace(b"\0", b"\0" * plane.row_bytes)
        * plane.layers
        for plane in geometry.planes
    )
    assert bytes(hits) == expected


def test_rows_of_a_plan_by_hand() -> None:
    geometry = Geometry(PAGED, 10)
    assert geometry.region_bytes == 3 * (10 * 5 + 10 * 2 + 3 * 7)
    assert geometry.bases == (0, 150, 210)
    assert geometry.plan(6, 0) == (
        (0, 0, 30),
        (30, 50, 30),
        (60, 100, 30),
        (90, 150, 12),
        (102, 170, 12),
        (114, 190, 12),
        (126, 210, 14),
        (140, 231, 14),
        (154, 252, 14),
    )


def test_a_full_region_is_one_run_of_bytes() -> None:
    layout = GqaLayout(model="m", layers=2, kv_heads=2, head_dim=4, dtype="float32", max_seq_len=3)
    assert layout.staging_bytes(3) == layout.region_bytes
    region = memoryview(bytearray(layout.region_bytes))
    whole = memoryview(bytearray(i % 251 for i in range(layout.region_bytes)))
    copy_rows(layout.plan(3), whole, region)
    assert region == whole


@pytest.mark.parametrize("seq_len", [0, -1])
def test_kv_05_a_length_below_one_is_refused(seq_len: int) -> None:
    layout = ScriptedLayout(8)
    for call in (layout.plan, layout.staging_bytes):
        with pytest.raises(InvalidRequest, match=rf"seq_len is {seq_len}; .* from 1 to 8"):
            call(seq_len)
    with pytest.raises(InvalidRequest, match=rf"seq_len is {seq_len}; .* from 1 to 8"):
        layout.unpack(memoryview(bytearray(layout.region_bytes)), seq_len)


def test_kv_05_the_longest_prompt_fits_and_one_token_more_is_refused() -> None:
    layout = ScriptedLayout(8)
    assert layout.staging_bytes(8) == layout.region_bytes == 32
    assert layout.plan(8) == ((0, 0, 32),)
    region = memoryview(bytearray(64))
    said = r"seq_len is 9, above max_seq_len 8"
    for call in (layout.plan, layout.staging_bytes):
        with pytest.raises(ContextLengthExceeded, match=said):
            call(9)
    with pytest.raises(ContextLengthExceeded, match=said):
        layout.unpack(region, 9)


def test_a_rank_that_sends_nothing_is_refused() -> None:
    layout = GqaLayout(
        model="m", layers=2, kv_heads=2, head_dim=4, dtype="float32", max_seq_len=3, senders=2
    )
    assert layout.sender_ranks == (0, 1)
    with pytest.raises(
        ValueError, match=r"rank 7 sends nothing; the layout's senders are \[0, 1\]"
    ):
        layout.plan(2, 7)


def test_a_region_without_rows_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_seq_len is 0"):
        ScriptedLayout(0)


@pytest.mark.parametrize(
    ("buffer", "said"),
    [
        (memoryview(bytes(8)), "writable, contiguous bytes"),
        (memoryview(bytearray(16))[::2], "writable, contiguous bytes"),
        (memoryview(bytearray(8)).cast("i"), "writable, contiguous bytes"),
        (memoryview(bytearray(7)), "the staging has 7 bytes; 8 are needed"),
    ],
)
def test_buffers_that_cannot_be_written_are_refused(buffer: memoryview, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        checked_buffer("staging", buffer, 8)


def test_kv_06_each_differing_field_is_named_with_both_values_and_the_flag() -> None:
    ours = GqaLayout(model="a", layers=30, kv_heads=4, head_dim=64, dtype="float32", max_seq_len=64)
    theirs = GqaLayout(
        model="a", layers=30, kv_heads=4, head_dim=64, dtype="bfloat16", max_seq_len=32, senders=2
    )
    assert differences(ours.describe(), ours.sized(7).describe()) == ()
    assert [str(found) for found in differences(ours.describe(), theirs.describe())] == [
        "dtype: ours is float32, theirs bfloat16; give both nodes the same --dtype"
        " (--kv-cache-dtype for MLA models, and on vLLM)",
        "senders: ours is 1, theirs 2;"
        " give the decode node as --senders the number of prefill's ranks that send:"
        " --tensor-parallel-size, or the model's key/value heads if they are fewer",
    ]


def test_kv_06_a_field_that_one_side_does_not_have_is_a_difference() -> None:
    gqa = GqaLayout(model="a", layers=1, kv_heads=1, head_dim=2, dtype="float16", max_seq_len=8)
    found = {
        item.field: (item.ours, item.theirs)
        for item in differences(gqa.describe(), ScriptedLayout(8).describe())
    }
    assert found == {
        "kind": ("gqa", "scripted"),
        "model": ("a", "not given"),
        "dtype": ("float16", "int32"),
        "kv_heads": ("1", "not given"),
        "head_dim": ("2", "not given"),
    }


def test_layouts_of_nodes_without_torch_leave_it_alone() -> None:
    code = (
        "import sys, tilert_engine.layouts.scripted, tilert_engine.layouts.gqa as gqa;"
        "gqa.GqaLayout(model='m', layers=2, kv_heads=2, head_dim=4, dtype='float16',"
        "max_seq_len=8).describe();"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
