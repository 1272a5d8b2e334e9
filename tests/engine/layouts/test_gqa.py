from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.layouts.carry import UNTOUCHED, landed
from tests.engine.torch.answer import GREEDY, prefill
from tests.engine.torch.tiny import Tiny, reference_greedy, write_huggingface
from tilert_engine.layouts.abc import KVLayout
from tilert_engine.layouts.gqa import GqaLayout
from tilert_engine.torch import TorchDecode, TorchPrefill, load
from tilert_engine.torch.kv_cache import KVCache
from tilert_stream.errors import ConfigError, EngineFault
from tilert_stream.events import Limits

SMALL = GqaLayout(model="m", layers=2, kv_heads=4, head_dim=2, dtype="float32", max_seq_len=6)


def numbered(layout: GqaLayout, seq_len: int) -> KVCache:
    """A cache in which every element has its own bits, NaNs among them."""
    dtype = getattr(torch, layout.dtype)
    shape = (layout.layers, layout.kv_heads, seq_len, layout.head_dim)
    size = layout.layers * layout.kv_heads * seq_len * layout.head_dim
    bits = torch.int32 if dtype == torch.float32 else torch.int16
    keys = (torch.arange(size, dtype=torch.int64) * 40503).to(bits)
    return KVCache(layout.model, keys.view(dtype).view(shape), (keys + 17).view(dtype).view(shape))


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    bits = torch.int32 if one.dtype == torch.float32 else torch.int16
    return one.dtype == other.dtype and torch.equal(
        one.contiguous().view(bits), other.contiguous().view(bits)
    )


@given(
    st.builds(
        GqaLayout,
        model=st.just("m"),
        layers=st.integers(1, 3),
        kv_heads=st.sampled_from([2, 4]),
        head_dim=st.integers(1, 4),
        dtype=st.sampled_from(["float32", "bfloat16", "float16"]),
        max_seq_len=st.integers(1, 20),
        senders=st.sampled_from([1, 2]),
    ),
    st.data(),
)
def test_a_cache_arrives_as_it_was(layout: GqaLayout, data: st.DataObject) -> None:
    seq_len = data.draw(st.integers(1, layout.max_seq_len))
    sent = numbered(layout, seq_len)
    taken = layout.unpack(landed(layout, sent, seq_len), seq_len)
    assert taken.model == "m"
    assert taken.seq_len == seq_len
    assert same_bits(taken.keys, sent.keys)
    assert same_bits(taken.values, sent.values)


def test_rows_lie_as_the_layout_says() -> None:
    kv = numbered(SMALL, 5)
    region = landed(SMALL, kv, 5)
    row = 4 * 2 * 4
    for kind, tensor in enumerate((kv.keys, kv.values)):
        for layer in range(2):
            plane = region[((kind * 2 + layer) * 6) * row :][: 6 * row]
            for token in range(5):
                wanted = tensor[layer, :, token].contiguous().numpy().tobytes()
                assert plane[token * row : (token + 1) * row] == wanted
            assert plane[5 * row :].tolist() == [UNTOUCHED] * row


def test_one_senders_cache_is_a_view_of_the_region() -> None:
    region = landed(SMALL, numbered(SMALL, 5), 5)
    taken = SMALL.unpack(region, 5)
    address = torch.frombuffer(region, dtype=torch.uint8).data_ptr()
    assert taken.keys.data_ptr() == address
    assert taken.values.data_ptr() == address + SMALL.region_bytes // 2


def test_rows_can_be_staged_one_by_one() -> None:
    kv = numbered(SMALL, 3)
    staging = memoryview(bytearray(SMALL.staging_bytes(3)))
    staged = SMALL.staged(staging, 3)
    for token in range(3):
        staged.keys[:, token] = kv.keys[:, :, token]
        staged.values[:, token] = kv.values[:, :, token]
    whole = memoryview(bytearray(SMALL.staging_bytes(3)))
    SMALL.pack(kv, whole)
    assert staging == whole


@pytest.mark.parametrize("sender_len", [40, 64])
def test_the_decode_engine_goes_on_from_what_has_landed(tmp_path: Path, sender_len: int) -> None:
    tiny = Tiny()
    path = write_huggingface(tiny, tmp_path / "m")
    checkpoint = load(path, dtype=torch.float32, device=torch.device("cpu"))
    prompt, limits = [5, 9, 11, 40, 7, 7, 3], Limits(8)
    output = prefill(TorchPrefill(checkpoint, max_seq_len=sender_len, chunk=3), prompt, limits)
    receiver = GqaLayout.of(checkpoint, dtype="float32", max_seq_len=48)
    sender = GqaLayout.of(checkpoint, dtype="float32", max_seq_len=sender_len)
    assert sender.describe() == receiver.describe()
    region = landed(sender.sized(receiver.max_seq_len), output.kv, len(prompt))

    decode = TorchDecode(checkpoint, slots=1, max_seq_len=48, ar_steps=3)
    ids = list(output.first.ids)
    sequence = decode.open(0, receiver.unpack(region, len(prompt)), ids[0], limits, GREEDY)
    region[:] = bytes(region.nbytes)
    finished = None
    while finished is None:
        harvest = decode.advance(sequence)
        finished = harvest.finished
        ids += harvest.batch.ids
    assert ids == reference_greedy(tiny, prompt, 8)


@pytest.mark.parametrize(
    ("kv", "said"),
    [
        ("kv", "takes a KVCache, not str"),
        (replace(numbered(SMALL, 3), model="n"), "model is n, the layout's is m"),
        (numbered(replace(SMALL, layers=3), 3), r"shape of keys is \(3, 4, 3, 2\)"),
        (numbered(replace(SMALL, dtype="float16"), 3), "dtype of keys is torch.float16"),
    ],
)
def test_another_models_cache_is_refused(kv: object, said: str) -> None:
    with pytest.raises(EngineFault, match=said):
        SMALL.pack(kv, memoryview(bytearray(SMALL.region_bytes)))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: replace(SMALL, dtype="int8"), "dtype is 'int8'; give float32, bfloat16, float16"),
        (lambda: replace(SMALL, layers=0), "layers is 0"),
        (lambda: replace(SMALL, senders=3), "4 key/value heads cannot be shared out among 3"),
        (lambda: replace(SMALL, max_seq_len=-1), "max_seq_len is -1"),
    ],
)
def test_a_layout_that_cannot_be_is_refused(make: Callable[[], object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make()


def test_it_keeps_the_contract() -> None:
    assert isinstance(SMALL, KVLayout)
    assert SMALL.name == "gqa"
