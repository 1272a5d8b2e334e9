from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.layouts import mla_nsa_reference as reference
from tilert_engine.layouts.mla_nsa_format import (
    dequantise_latent,
    hadamard,
    new_pages,
    new_rows,
    quantise_keys,
    quantise_latent,
    read_pages,
    read_rows,
    write_pages,
    write_rows,
)
from tilert_engine.layouts.mla_nsa_model import CacheDtype

CPU = torch.device("cpu")
ROUNDING = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8}
"""The largest relative error of one rounding to nearest."""
SLACK = 2.0**-21
"""What the few fp32 operations before it may add."""

tokens = st.sampled_from([1, 2, 63, 64, 65, 127, 128, 129]) | st.integers(1, 200)
imports = st.sampled_from([torch.float32, torch.bfloat16])
caches = st.sampled_from(["fp8_ds_mla", "bf16"])
seeds = st.integers(0, 2**32 - 1)


def near(got: torch.Tensor, exact: reference.Floats, *, sums_of: reference.Floats) -> None:
    """``got`` is ``exact`` rounded once; ``sums_of`` bounds what was added up on the way."""
    error = np.abs(got.double().numpy() - exact)
    assert (error <= np.abs(exact) * ROUNDING[got.dtype] + sums_of * SLACK).all()


@given(seeds, tokens, caches, imports)
def test_rows_are_read_as_the_format_says(
    seed: int, count: int, cache: CacheDtype, dtype: torch.dtype
) -> None:
    rows = reference.drawn(seed, 1, count, cache).rows[0]
    latent, rope = read_rows(torch.tensor(rows), dtype)
    assert (latent.dtype, rope.dtype) == (dtype, dtype)
    split = rows.shape[1] - 128
    exact = reference.latent(rows[:, :split])
    near(latent, exact, sums_of=np.abs(exact))
    np.testing.assert_array_equal(rope.double().numpy(), reference.bf16(rows[:, split:]))


@given(seeds, tokens, imports, st.booleans())
def test_pages_are_read_as_the_format_says(
    seed: int, count: int, dtype: torch.dtype, rotate: bool
) -> None:
    pages = reference.drawn(seed, 1, count, "bf16").pages[0]
    got = read_pages(torch.tensor(pages), count, dtype, rotate=rotate)
    assert got.shape == (count, 128)
    assert got.dtype == dtype
    exact = reference.keys(pages, count)
    sums = np.abs(exact)
    if rotate:
        exact, sums = exact @ reference.HADAMARD, sums @ np.abs(reference.HADAMARD)
    near(got, exact, sums_of=sums)


@given(seeds, tokens, caches, st.data())
def test_rows_written_in_chunks_hold_what_was_written(
    seed: int, count: int, cache: CacheDtype, data: st.DataObject
) -> None:
    generator = torch.Generator().manual_seed(seed)
    latent = torch.randn(2, count, 512, generator=generator) * 3
    rope = torch.randn(2, count, 64, generator=generator)
    cut = data.draw(st.integers(0, count))
    rows = new_rows(2, count, cache, CPU)
    write_rows(rows, 0, latent[:, :cut], rope[:, :cut])
    write_rows(rows, cut, latent[:, cut:], rope[:, cut:])
    split = rows.shape[-1] - 128
    for layer in range(2):
        raw = rows[layer].numpy()
        exact = latent[layer].double().numpy()
        error = np.abs(reference.latent(raw[:, :split]) - exact)
        assert (error <= latent_bound(exact, cache)).all()
        np.testing.assert_array_equal(
            reference.bf16(raw[:, split:]), rope[layer].bfloat16().double().numpy()
        )


def latent_bound(exact: reference.Floats, cache: str) -> reference.Floats:
    """Half a step of the stored format at each value."""
    if cache == "bf16":
        return np.abs(exact) * 2.0**-8
    scale = np.repeat(np.abs(exact).reshape(-1, 4, 128).max(-1) / 448, 128, axis=1)
    return np.maximum(np.abs(exact) * 2.0**-4, scale * 2.0**-10) * (1 + 1e-6)


@given(seeds, tokens, st.data())
def test_pages_written_in_chunks_hold_what_was_written_and_zeros_beyond(
    seed: int, count: int, data: st.DataObject
) -> None:
    keys = torch.randn(2, count, 128, generator=torch.Generator().manual_seed(seed)) * 5
    cut = data.draw(st.integers(0, count))
    pages = new_pages(2, count, CPU)
    write_pages(pages, 0, keys[:, :cut])
    write_pages(pages, cut, keys[:, cut:])
    used = count - (count - 1) // 64 * 64
    for layer in range(2):
        raw = pages[layer].numpy()
        exact = keys[layer].double().numpy()
        scale = 2.0 ** np.ceil(np.log2(np.abs(exact).max(-1, keepdims=True) / 448))
        bound = np.maximum(np.abs(exact) * 2.0**-4, scale * 2.0**-10)
        assert (np.abs(reference.keys(raw, count) - exact) <= bound).all()
        assert not raw[-1, used * 128 : 8192].any()
        assert not raw[-1, 8192 + used * 4 :].any()


def test_a_row_by_hand() -> None:
    latent = torch.zeros(1, 512)
    latent[0, 0], latent[0, 1], latent[0, 300] = 448.0, -1.0, 896.0
    rope = torch.arange(64.0).unsqueeze(0)
    rows = new_rows(1, 1, "fp8_ds_mla", CPU)[0]
    write_rows(rows, 0, latent, rope)
    raw = rows[0].numpy().tobytes()
    assert len(raw) == 656
    assert (raw[0], raw[1], raw[300]) == (0x7E, 0xB8, 0x7E)
    smallest = np.float32(2.0**-126).tobytes()
    one, two = np.float32(1).tobytes(), np.float32(2).tobytes()
    assert raw[512:528] == one + smallest + two + smallest
    assert raw[528:532] == bytes.fromhex("0000803f")


def test_a_page_by_hand() -> None:
    keys = torch.zeros(2, 128)
    keys[1, 5] = 449.0
    pages = new_pages(1, 2, CPU)[0]
    write_pages(pages, 0, keys)
    raw = pages[0].numpy().tobytes()
    assert len(raw) == 8448
    assert raw[128 + 5] == 0x76, "449 over a scale of 2 is rounded to 224"
    assert raw[8192:8200] == np.array([2.0**-22, 2.0], "<f4").tobytes()


@pytest.mark.parametrize("power", range(-13, 20))
def test_a_power_of_two_is_its_own_scale(power: int) -> None:
    """The next larger number takes the next power: no value ever overflows."""
    keys = torch.full((2, 128), 448.0 * 2.0**power)
    keys[1] = torch.nextafter(keys[1], torch.tensor(torch.inf))
    values, scales = quantise_keys(keys)
    assert torch.equal(scales, torch.tensor([2.0**power, 2.0 ** (power + 1)]))
    assert torch.equal(values.float()[:, 0], torch.tensor([448.0, 224.0]))


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_not_finite_does_not_become_a_number(value: float) -> None:
    latent = torch.ones(1, 512)
    latent[0, 130] = value
    back = dequantise_latent(*quantise_latent(latent), torch.float32)
    assert not back[0, 130].isfinite()
    assert back[0, :128].isfinite().all()


def test_rotation_keeps_inner_products_and_undoes_itself() -> None:
    one, other = torch.randn(2, 50, 128, generator=torch.Generator().manual_seed(1))
    turned = hadamard(one)
    torch.testing.assert_close(
        turned.numpy(),
        (one.double().numpy() @ reference.HADAMARD).astype(np.float32),
        rtol=1e-5,
        atol=1e-5,
    )
    torch.testing.assert_close(
        (turned * hadamard(other)).sum(-1), (one * other).sum(-1), rtol=1e-4, atol=1e-4
    )
    torch.testing.assert_close(hadamard(turned), one, rtol=1e-5, atol=1e-5)


def test_rotation_first_used_in_inference_mode_can_be_trained_through() -> None:
    with torch.inference_mode():
        hadamard(torch.ones(1, 128))
    weight = torch.ones(1, 128, requires_grad=True)
    (gradient,) = torch.autograd.grad(hadamard(weight)[0, 0], weight)
    torch.testing.assert_close(gradient, torch.full((1, 128), 128.0**-0.5))


def test_strided_caches_are_read_and_written_in_place() -> None:
    """A block of a paged cache may lie further apart than it is long."""
    wide = torch.zeros(3, 2, 9000, dtype=torch.uint8)
    pages = wide[1, :, :8448]
    keys = torch.randn(100, 128, generator=torch.Generator().manual_seed(2))
    write_pages(pages, 0, keys)
    packed = new_pages(1, 100, CPU)[0]
    write_pages(packed, 0, keys)
    assert torch.equal(pages, packed)
    assert torch.equal(read_pages(pages, 100), read_pages(packed, 100))
    assert not wide[0].any()
    assert not wide[1, :, 8448:].any()
