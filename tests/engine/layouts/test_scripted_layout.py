from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.layouts.carry import landed
from tilert_engine.layouts.abc import KVLayout
from tilert_engine.layouts.scripted import ScriptedLayout
from tilert_engine.scripted import Script, ScriptedDecode, ScriptedKV, ScriptedPrefill
from tilert_stream.errors import EngineFault

ids = st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=40)


@given(ids, st.integers(0, 40), st.integers(0, 40))
def test_ids_arrive_as_they_were(prompt: list[int], more: int, other: int) -> None:
    sender = ScriptedLayout(len(prompt) + other)
    receiver = ScriptedLayout(len(prompt) + more)
    kv = ScriptedKV(tuple(prompt))
    region = landed(sender.sized(receiver.max_seq_len), kv, len(prompt))
    assert region.nbytes == receiver.region_bytes
    assert receiver.unpack(region, len(prompt)) == kv


def test_a_layout_is_made_from_either_engine() -> None:
    prefill = ScriptedLayout.of(ScriptedPrefill(Script(), max_seq_len=16))
    decode = ScriptedLayout.of(ScriptedDecode(Script(), max_seq_len=32))
    assert (prefill.max_seq_len, decode.max_seq_len) == (16, 32)
    assert prefill.describe() == decode.describe()
    assert isinstance(prefill, KVLayout)


def test_another_kind_of_kv_is_refused() -> None:
    with pytest.raises(EngineFault, match="takes ScriptedKV, not str"):
        ScriptedLayout(4).pack("kv", memoryview(bytearray(16)))


def test_an_id_beyond_int32_is_refused() -> None:
    with pytest.raises(EngineFault, match="int32"):
        ScriptedLayout(4).pack(ScriptedKV((1, 2**31)), memoryview(bytearray(16)))
