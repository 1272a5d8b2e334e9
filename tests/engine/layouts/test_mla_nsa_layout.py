from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Literal, cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.layouts import mla_nsa_reference as reference
from tests.engine.layouts.carry import UNTOUCHED, landed
from tilert_engine.layouts.abc import KVLayout
from tilert_engine.layouts.mla_nsa import MlaNsaLayout
from tilert_engine.layouts.mla_nsa_cache import CachedKV, ImportedKV
from tilert_engine.layouts.mla_nsa_model import CacheDtype, MlaNsaModel, cache_dtype, with_draft
from tilert_stream.errors import ConfigError, ContextLengthExceeded, EngineFault
from tilert_transports.control.layout import differences

TINY = MlaNsaModel("tiny-glm5", 2, 1)
SMALL = MlaNsaLayout(model=TINY, dtype="fp8_ds_mla", max_seq_len=130)
CACHES: tuple[CacheDtype, ...] = ("fp8_ds_mla", "bf16")


def cached(drawn: reference.Drawn, model: str = "tiny-glm5") -> CachedKV:
    return CachedKV(model, torch.tensor(drawn.rows), torch.tensor(drawn.pages))


def assert_imported(got: ImportedKV, sent: reference.Drawn) -> None:
    """Equal to the reference but for one rounding, in every layer."""
    rounding = 2.0**-8 if got.kv.dtype == torch.bfloat16 else 2.0**-24
    width = sent.rows.shape[-1] - 128
    assert len(list(got.layers())) == sent.rows.shape[0]
    for layer, (ki, kv, pe) in enumerate(got.layers()):
        rows = sent.rows[layer]
        np.testing.assert_array_equal(pe.double().numpy(), reference.bf16(rows[:, width:]))
        latent = reference.latent(rows[:, :width])
        assert (np.abs(kv.double().numpy() - latent) <= np.abs(latent) * rounding * 1.01).all()
        keys = reference.keys(sent.pages[layer], got.seq_len)
        slack = np.abs(keys) @ np.abs(reference.HADAMARD) * 2.0**-21
        exact = keys @ reference.HADAMARD
        assert (np.abs(ki.double().numpy() - exact) <= np.abs(exact) * rounding + slack).all()


@settings(deadline=None)
@given(
    st.sampled_from(CACHES),
    st.sampled_from(["bfloat16", "float32"]),
    st.builds(MlaNsaModel, st.just("tiny-glm5"), st.integers(1, 3), st.integers(0, 1)),
    st.sampled_from([1, 63, 64, 65, 127, 128, 129]) | st.integers(1, 140),
    st.sampled_from([0, 1, 63, 64]),
    st.integers(0, 2**32 - 1),
)
def test_a_cache_arrives_as_it_was(
    cache: CacheDtype, taken_as: str, model: MlaNsaModel, seq_len: int, room: int, seed: int
) -> None:
    layout = MlaNsaLayout(
        model=model,
        dtype=cache,
        max_seq_len=seq_len + room,
        import_dtype="float32" if taken_as == "float32" else "bfloat16",
        refuse_nan=True,
    )
    sent = reference.drawn(seed, model.layers, seq_len, cache)
    got = layout.unpack(landed(layout, cached(sent), seq_len), seq_len)
    assert got.seq_len == seq_len
    assert got.model == "tiny-glm5"
    assert {tensor.dtype for tensor in (got.ki, got.kv, got.pe)} == {getattr(torch, taken_as)}
    assert_imported(got, sent)


@pytest.mark.parametrize("cache", CACHES)
def test_bytes_lie_as_in_tilerts_buffer(cache: CacheDtype) -> None:
    layout = replace(SMALL, dtype=cache)
    sent = reference.drawn(7, 3, 66, cache)
    region = landed(layout, cached(sent), 66)
    width = reference.LATENT_BYTES[cache]
    kv, pe, ki = 0, 3 * 130 * width, 3 * 130 * (width + 128)
    assert layout.bases() == {"kv_base": kv, "pe_base": pe, "ki_base": ki}
    assert region.nbytes == layout.region_bytes == ki + 3 * 3 * 8448
    for layer in range(3):
        for token in range(66):
            row = sent.rows[layer, token].tobytes()
            at = kv + (layer * 130 + token) * width
            assert region[at : at + width] == row[:width]
            at = pe + (layer * 130 + token) * 128
            assert region[at : at + 128] == row[width:]
        at = ki + layer * 3 * 8448
        assert region[at : at + 2 * 8448] == sent.pages[layer].tobytes()
        assert region[at + 2 * 8448 : at + 3 * 8448].tolist() == [UNTOUCHED] * 8448


def test_three_writes_a_layer() -> None:
    layout = MlaNsaLayout(model=MlaNsaModel.of("glm5"), dtype="fp8_ds_mla", max_seq_len=8192)
    plan = layout.plan(65)
    assert [nbytes for _, _, nbytes in plan] == [65 * 528] * 79 + [65 * 128] * 79 + [2 * 8448] * 79
    assert layout.staging_bytes(65) == 79 * (65 * 656 + 2 * 8448)
    assert layout.region_bytes == 79 * (8192 * 656 + 128 * 8448)
    assert plan[1][1] - plan[0][1] == 8192 * 528
    assert plan[-1][1] - plan[-2][1] == 128 * 8448


@pytest.mark.parametrize(
    ("name", "draft", "layers", "drafts", "version"),
    [
        ("glm5", True, 79, 1, 10),
        ("glm_5", True, 79, 1, 10),
        ("GLM-5", True, 79, 1, 10),
        ("glm-5.1", True, 79, 1, 10),
        ("glm5", False, 78, 0, 1010),
        ("dsv32", True, 62, 1, 11),
        ("deepseek_v3_2", True, 62, 1, 11),
        ("deepseek-v3.2", True, 62, 1, 11),
        ("dsv3.2", False, 62, 1, 11),
        ("v32", False, 62, 1, 11),
    ],
)
def test_known_models_have_tilerts_numbers(
    name: str, draft: bool, layers: int, drafts: int, version: int
) -> None:
    model = MlaNsaModel.of(name, draft=draft)
    assert (model.layers, model.draft_layers) == (layers, drafts)
    assert model.version("fp8_ds_mla") == version
    assert model.version("bf16") == version + 40


def test_own_models_have_numbers_of_their_own() -> None:
    shapes: list[tuple[int, int, CacheDtype]] = [
        (main, drafts, dtype) for main in range(1, 80) for drafts in (0, 1, 2) for dtype in CACHES
    ]
    numbers = {MlaNsaModel("m", main, drafts).version(dtype) for main, drafts, dtype in shapes}
    assert len(numbers) == len(shapes)
    assert not numbers & {10, 1010, 11, 50, 1050, 51}


@pytest.mark.parametrize(
    ("flag", "value", "wanted"),
    [
        (None, None, True),
        (None, "", True),
        (None, "0", True),
        (None, "1", False),
        (True, "1", True),
        (False, None, False),
        (False, "0", False),
    ],
)
def test_one_setting_decides_on_the_draft_layer(
    flag: bool | None, value: str | None, wanted: bool
) -> None:
    environment = {} if value is None else {"TILERT_PD_NO_MTP": value}
    assert with_draft(environment, flag=flag) is wanted


def test_kv_06_a_layout_with_a_draft_layer_and_one_without_are_told_apart() -> None:
    ours = MlaNsaLayout(model=MlaNsaModel.of("glm5"), dtype="bf16", max_seq_len=64)
    theirs = MlaNsaLayout(
        model=MlaNsaModel.of("glm5", draft=False), dtype="fp8_ds_mla", max_seq_len=32
    )
    assert differences(ours.describe(), ours.sized(7).describe()) == ()
    found = {item.field: item for item in differences(ours.describe(), theirs.describe())}
    assert {field: (item.ours, item.theirs) for field, item in found.items()} == {
        "version": ("50", "1010"),
        "dtype": ("bf16", "fp8_ds_mla"),
        "layers": ("79", "78"),
        "draft_layers": ("1", "0"),
    }
    assert "--with-mtp" in found["draft_layers"].fix
    assert "--kv-cache-dtype" in found["dtype"].fix


def test_what_needs_no_work_is_a_view_of_the_region() -> None:
    layout = replace(SMALL, dtype="bf16")
    region = landed(layout, cached(reference.drawn(1, 3, 5, "bf16")), 5)
    got = layout.unpack(region, 5)
    address = torch.frombuffer(region, dtype=torch.uint8).data_ptr()
    assert got.kv.data_ptr() == address
    assert got.pe.data_ptr() == address + layout.bases()["pe_base"]


def test_the_undivided_model_takes_the_same_cache_without_a_region() -> None:
    kv = cached(reference.drawn(2, 3, 70, "fp8_ds_mla"))
    here = SMALL.imported(kv.planes)
    there = SMALL.unpack(landed(SMALL, kv, 70), 70)
    for one, other in zip(here.layers(), there.layers(), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def poisoned(plane: str) -> CachedKV:
    kv = cached(reference.drawn(3, 3, 70, "fp8_ds_mla"))
    if plane == "kv":
        kv.rows[1, 66, 5] = 0x7F
    elif plane == "scale":
        kv.rows[1, 66, 512:516] = torch.tensor([0, 0, 0x80, 0x7F], dtype=torch.uint8)
    elif plane == "pe":
        kv.rows[1, 66, 528:530] = torch.tensor([0xC0, 0x7F], dtype=torch.uint8)
    else:
        kv.pages[1, 1, 2 * 128 + 9] = 0xFF
    return kv


@pytest.mark.parametrize(
    ("poison", "named"), [("kv", "kv"), ("scale", "kv"), ("pe", "pe"), ("ki", "ki")]
)
def test_nan_is_refused_on_request_naming_layer_and_token(poison: str, named: str) -> None:
    region = landed(SMALL, poisoned(poison), 70)
    assert SMALL.unpack(region, 70).seq_len == 70
    with pytest.raises(EngineFault, match=f"plane {named}, layer 1, token 66"):
        replace(SMALL, refuse_nan=True).unpack(region, 70)


def test_nan_beyond_the_prompt_is_nobodys() -> None:
    kv = cached(reference.drawn(3, 3, 70, "fp8_ds_mla"))
    kv.pages[:, 1, 6 * 128 : 8192] = 0xFF
    checked = replace(SMALL, refuse_nan=True)
    assert checked.unpack(landed(SMALL, kv, 70), 70).ki.isfinite().all()


@pytest.mark.parametrize(
    ("kv", "said"),
    [
        (lambda: "kv", "takes a CachedKV, not str"),
        (lambda: cached(reference.drawn(0, 3, 2, "fp8_ds_mla"), "m"), "model is m, .* tiny-glm5"),
        (
            lambda: cached(reference.drawn(0, 3, 2, "bf16")),
            r"shape of rows is \(3, 2, 1152\), the layout's is \(3, 2, 656\)",
        ),
        (lambda: cached(reference.drawn(0, 2, 2, "fp8_ds_mla")), r"shape of rows is \(2, 2, 656\)"),
        (
            lambda: replace(
                cached(reference.drawn(0, 3, 65, "fp8_ds_mla")),
                pages=torch.zeros(3, 1, 8448, dtype=torch.uint8),
            ),
            r"shape of pages is \(3, 1, 8448\), the layout's is \(3, 2, 8448\)",
        ),
        (
            lambda: replace(
                cached(reference.drawn(0, 3, 2, "fp8_ds_mla")), rows=torch.zeros(3, 2, 656)
            ),
            "dtype of rows is torch.float32, the layout's is torch.uint8",
        ),
    ],
)
def test_another_models_cache_is_refused(kv: Callable[[], object], said: str) -> None:
    with pytest.raises(EngineFault, match=said):
        SMALL.pack(kv(), memoryview(bytearray(SMALL.region_bytes)))


def test_kv_05_the_longest_prompt_fits_and_one_token_more_is_refused() -> None:
    region = memoryview(bytearray(SMALL.region_bytes))
    assert SMALL.unpack(region, 130).seq_len == 130
    with pytest.raises(ContextLengthExceeded, match="seq_len is 131, above max_seq_len 130"):
        SMALL.unpack(region, 131)
    with pytest.raises(ContextLengthExceeded, match="seq_len is 131, above max_seq_len 130"):
        SMALL.pack(cached(reference.drawn(0, 3, 131, "fp8_ds_mla")), region)


def test_a_rank_that_sends_nothing_is_refused() -> None:
    kv = cached(reference.drawn(0, 3, 2, "fp8_ds_mla"))
    with pytest.raises(ValueError, match="rank 1 sends nothing"):
        SMALL.pack(kv, memoryview(bytearray(SMALL.region_bytes)), 1)


def with_dtype(name: str) -> MlaNsaLayout:
    return MlaNsaLayout(model=TINY, dtype=cache_dtype(name), max_seq_len=8)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("fp8_ds_mla", "fp8_ds_mla"),
        ("fp8", "fp8_ds_mla"),
        ("fp8_e4m3", "fp8_ds_mla"),
        ("bf16", "bf16"),
        ("bfloat16", "bf16"),
        ("auto", "bf16"),
    ],
)
def test_a_cache_dtype_has_several_names(name: str, dtype: str) -> None:
    assert with_dtype(name).dtype == dtype


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: with_dtype("int8"), "--kv-cache-dtype is 'int8'; give one of fp8_ds_mla, fp8"),
        (lambda: replace(SMALL, max_seq_len=0), "max_seq_len is 0"),
        (
            lambda: replace(SMALL, dtype=cast("CacheDtype", "fp8")),
            "dtype is 'fp8'; give fp8_ds_mla or bf16",
        ),
        (
            lambda: replace(SMALL, import_dtype=cast("Literal['float32']", "float16")),
            "'float16'; give bfloat16 or float32",
        ),
        (lambda: MlaNsaModel.of("llama"), "the model is 'llama'; glm5 .* and dsv32"),
        (lambda: MlaNsaModel("m", 0), "m has 0 layers and 1 draft layers"),
        (lambda: MlaNsaModel("m", 1, -1), "m has 1 layers and -1 draft layers"),
        (lambda: with_draft({"TILERT_PD_NO_MTP": "no"}), "TILERT_PD_NO_MTP is 'no'; give 1"),
    ],
)
def test_a_layout_that_cannot_be_is_refused(make: Callable[[], object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make()


def test_it_keeps_the_contract() -> None:
    assert isinstance(SMALL, KVLayout)
    assert SMALL.name == "mla_nsa"
    assert SMALL.sender_ranks == (0,)


def test_a_node_that_only_plans_needs_no_torch() -> None:
    code = (
        "import sys, tilert_engine.layouts.mla_nsa as m;"
        "layout = m.MlaNsaLayout(model=m.MlaNsaModel.of('glm5'), dtype='bf16', max_seq_len=64);"
        "layout.describe(), layout.plan(9);"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
