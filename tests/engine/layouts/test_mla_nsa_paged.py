from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.layouts import mla_nsa_reference as reference
from tests.engine.layouts.carry import copy_rows
from tilert_engine.layouts.host_memory import page_locked
from tilert_engine.layouts.mla_nsa import MlaNsaLayout
from tilert_engine.layouts.mla_nsa_cache import CachedKV
from tilert_engine.layouts.mla_nsa_model import CacheDtype, MlaNsaModel
from tilert_engine.layouts.mla_nsa_paged import PagedCaches, extract, layer_of, recognise
from tilert_stream.errors import ConfigError
from tilert_transports.host_memory import prefault
from tilert_transports.shm_memory import SharedMemory

TINY = MlaNsaModel("tiny-glm5", 2, 1)
DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
    ),
]


def names(model: MlaNsaModel) -> list[tuple[str, str]]:
    """Of latents and pages, layer by layer, as vLLM registers them."""
    return [
        (
            f"model.layers.{layer}.self_attn.attn",
            f"model.layers.{layer}.self_attn.indexer.k_cache",
        )
        for layer in range(model.layers)
    ]


def shuffled(count: int, seed: int) -> list[int]:
    order = torch.randperm(count + 3, generator=torch.Generator().manual_seed(seed))
    return [int(block) for block in order[:count]]


def paged(
    drawn: reference.Drawn,
    model: MlaNsaModel,
    blocks: list[int],
    *,
    gap: int = 0,
    head: bool = False,
    device: str = "cpu",
) -> dict[str, torch.Tensor]:
    """vLLM's caches with one prompt in ``blocks``, all other bytes 0xEE.

    :param gap: bytes between two blocks.
    :param head: whether there is a dimension of one head.
    """
    caches: dict[str, torch.Tensor] = {}
    tokens = drawn.rows.shape[1]
    for layer, (latent_name, indexer_name) in enumerate(names(model)):
        rows, pages = torch.tensor(drawn.rows[layer]), torch.tensor(drawn.pages[layer])
        width = rows.shape[1]
        latent = blocks_of(width, gap)
        indexer = blocks_of(132, gap)
        for index, block in enumerate(blocks):
            part = rows[index * 64 : index * 64 + 64]
            latent[block, : part.shape[0]] = part
            indexer[block] = pages[index].view(64, 132)
        assert tokens <= len(blocks) * 64
        if width == 1152:
            latent = latent.view(torch.bfloat16)
        for name, cache in ((latent_name, latent), (indexer_name, indexer)):
            moved = cache if device == "cpu" else cache.to(device)
            caches[name] = moved.unsqueeze(1) if head else moved
    return caches


def blocks_of(width: int, gap: int) -> torch.Tensor:
    flat = torch.full((8, 64 * width + gap), 0xEE, dtype=torch.uint8)
    return flat[:, : 64 * width].view(8, 64, width)


def extracted(
    caches: dict[str, torch.Tensor], layout: MlaNsaLayout, blocks: list[int], seq_len: int
) -> memoryview:
    staging = memoryview(bytearray(layout.staging_bytes(seq_len)))
    found = recognise(caches, layout.model, layout.dtype)
    extract(found, blocks, layout.staged(staging, seq_len))
    return staging


@pytest.mark.parametrize("device", DEVICES)
@given(
    st.sampled_from(["fp8_ds_mla", "bf16"]),
    st.builds(MlaNsaModel, st.just("m"), st.integers(1, 2), st.integers(0, 1)),
    st.sampled_from([1, 63, 64, 65, 128, 129]) | st.integers(1, 200),
    st.sampled_from([0, 512]),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_a_prompt_is_gathered_from_its_blocks_and_from_nowhere_else(
    device: str,
    dtype: CacheDtype,
    model: MlaNsaModel,
    seq_len: int,
    gap: int,
    head: bool,
    seed: int,
) -> None:
    sent = reference.drawn(seed, model.layers, seq_len, dtype)
    blocks = shuffled(-(-seq_len // 64), seed)
    layout = MlaNsaLayout(model=model, dtype=dtype, max_seq_len=200)
    caches = paged(sent, model, blocks, gap=gap, head=head, device=device)
    staging = extracted(caches, layout, [*blocks, 99], seq_len)

    used = (seq_len - 1) % 64 + 1
    sent.pages[:, -1, used * 128 : 8192] = 0
    sent.pages[:, -1, 8192 + used * 4 :] = 0
    packed = memoryview(bytearray(layout.staging_bytes(seq_len)))
    layout.pack(CachedKV("m", torch.tensor(sent.rows), torch.tensor(sent.pages)), packed)
    assert staging == packed


def test_an_extracted_prompt_can_be_imported() -> None:
    sent = reference.drawn(5, 3, 70, "fp8_ds_mla")
    layout = MlaNsaLayout(model=TINY, dtype="fp8_ds_mla", max_seq_len=100, refuse_nan=True)
    staging = extracted(paged(sent, TINY, [4, 2]), layout, [4, 2], 70)
    region = memoryview(bytearray(b"\xff") * layout.region_bytes)
    copy_rows(layout.plan(70), staging, region)
    direct = layout.imported(
        CachedKV(TINY.name, torch.tensor(sent.rows), torch.tensor(sent.pages)).planes
    )
    for one, other in zip(layout.unpack(region, 70).layers(), direct.layers(), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("dtype", ["fp8_ds_mla", "bf16"])
def test_cuda_imports_what_the_cpu_does(dtype: CacheDtype) -> None:
    sent = reference.drawn(6, 3, 130, dtype)
    planes = CachedKV(TINY.name, torch.tensor(sent.rows), torch.tensor(sent.pages)).planes
    here = MlaNsaLayout(model=TINY, dtype=dtype, max_seq_len=130).imported(planes)
    there = MlaNsaLayout(model=TINY, dtype=dtype, max_seq_len=130, device="cuda").imported(planes)
    for one, other in zip(here.layers(), there.layers(), strict=True):
        assert {tensor.device.type for tensor in other} == {"cuda"}
        torch.testing.assert_close([t.cpu() for t in other], list(one), rtol=2**-7, atol=1e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("dtype", ["fp8_ds_mla", "bf16"])
@pytest.mark.parametrize(("main_layers", "tokens"), [(1, 1), (2, 130), (39, 700)])
def test_a_locked_region_may_be_written_over_once_it_is_imported(
    dtype: CacheDtype, main_layers: int, tokens: int
) -> None:
    model = MlaNsaModel("tiny-glm5", main_layers, 1)
    sent = reference.drawn(7, 3, tokens, dtype)
    layers = [layer % 3 for layer in range(model.layers)]
    planes = CachedKV(
        model.name, torch.tensor(sent.rows)[layers], torch.tensor(sent.pages)[layers]
    ).planes
    here = MlaNsaLayout(model=model, dtype=dtype, max_seq_len=tokens + 77)
    there = replace(here, device="cuda")
    memory = SharedMemory(there.region_bytes)
    prefault(memory)
    with page_locked(memory.view, torch.device("cuda")):
        landed = there.landed(memory.view, tokens)
        for place, plane in zip(landed, planes, strict=True):
            place.copy_(plane)
        assert landed.kv.is_pinned()
        taken = there.unpack(memory.view, tokens)
        memory.view[:] = bytes([0x41]) * memory.nbytes
        for one, other in zip(here.imported(planes).layers(), taken.layers(), strict=True):
            torch.testing.assert_close([t.cpu() for t in other], list(one), rtol=2**-7, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "draft", "wanted"),
    [
        ("model.layers.0.self_attn.attn", 1, ("latent", 0)),
        ("model.layers.77.self_attn.mla_attn", 1, ("latent", 77)),
        ("model.layers.78.self_attn.attn", 1, ("latent", 78)),
        ("model.layers.12.self_attn.indexer.k_cache", 1, ("indexer", 12)),
        ("layers.3.index_k", 1, ("indexer", 3)),
        ("mtp.0.self_attn.attn", 1, ("latent", 78)),
        ("model.mtp.layers.0.self_attn.indexer.k_cache", 1, ("indexer", 78)),
        ("mtp.0.self_attn.attn", 0, ("latent", 78)),
        ("model.layers.78.mtp_block.self_attn.attn", 1, ("latent", 78)),
    ],
)
def test_layers_are_recognised_by_name(name: str, draft: int, wanted: tuple[str, int]) -> None:
    assert layer_of(name, MlaNsaModel("glm5", 78, draft)) == wanted


def small(dtype: CacheDtype = "fp8_ds_mla", model: MlaNsaModel = TINY) -> dict[str, torch.Tensor]:
    return paged(reference.drawn(1, model.layers, 2, dtype), model, [1])


def without(*parts: str) -> dict[str, torch.Tensor]:
    return {name: cache for name, cache in small().items() if not any(p in name for p in parts)}


def changed(name: str, cache: torch.Tensor) -> dict[str, torch.Tensor]:
    return small() | {name: cache}


LATENT_1 = "model.layers.1.self_attn.attn"
INDEXER_1 = "model.layers.1.self_attn.indexer.k_cache"


@pytest.mark.parametrize(
    ("caches", "said"),
    [
        (lambda: without("layers.2."), r"has 4 KV caches, .* 6 .*--speculative-config .*mtp"),
        (lambda: without("layers.2.self_attn.indexer"), "draft layer's are missing"),
        (lambda: without(INDEXER_1), "missing: indexer of layer 1; extra: none"),
        (lambda: without("layers.1.", "layers.2."), "missing: indexer of layer 1, indexer of lay"),
        (
            lambda: small(model=MlaNsaModel("m", 5, 1)),
            r"12 KV caches, .* 6 .*extra: .*layers.3.* and 2 more; serve the same model",
        ),
        (
            lambda: changed("mtp.0.self_attn.attn", small()[LATENT_1]),
            "two latent caches of layer 2: model.layers.2.self_attn.attn and mtp.0.self_attn.attn",
        ),
        (lambda: changed("lm_head", torch.zeros(1)), "'lm_head', which names no layer"),
        (lambda: small("bf16"), r"1152 bytes, 1152 apart \(bf16\), .* 656 .* fp8_ds_mla"),
        (
            lambda: changed(LATENT_1, torch.zeros(2, 64, 584, dtype=torch.uint8)),
            r"1.self_attn.attn has rows of 584 bytes, 584 apart \(no known dtype\)",
        ),
        (
            lambda: changed(LATENT_1, torch.zeros(2, 64, 1152, dtype=torch.uint8)[..., :656]),
            r"rows of 656 bytes, 1152 apart \(bf16\)",
        ),
        (
            lambda: changed(LATENT_1, torch.zeros(2, 16, 656, dtype=torch.uint8)),
            "blocks of 16 tokens, the layout of 64; give vLLM --block-size 64",
        ),
        (
            lambda: changed(LATENT_1, torch.zeros(2, 64 * 656, dtype=torch.uint8)),
            r"shape \[2, 41984\] and strides \[41984, 1\]",
        ),
        (
            lambda: changed(LATENT_1, torch.zeros(2, 656, 64, dtype=torch.uint8).mT),
            "rows of contiguous bytes are needed",
        ),
        (
            lambda: changed(INDEXER_1, torch.zeros(2, 64, 128, dtype=torch.bfloat16)),
            "indexer.k_cache has 256 bytes a token, 256 apart, the layout 132",
        ),
    ],
)
def test_caches_that_do_not_fit_are_refused(
    caches: Callable[[], dict[str, torch.Tensor]], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        recognise(caches(), TINY, "fp8_ds_mla")


def test_a_bf16_layout_names_vllms_own_word_for_it() -> None:
    with pytest.raises(ConfigError, match=r"\(fp8_ds_mla\), .*--kv-cache-dtype bfloat16"):
        recognise(small(), TINY, "bf16")


@pytest.mark.parametrize("name", ["model.layers.2.self_attn", "mtp.0.self_attn"])
def test_a_draft_layer_that_the_layout_leaves_out_is_refused(name: str) -> None:
    found = small(model=MlaNsaModel("m", 2, 0))
    found |= {f"{name}.attn": found[LATENT_1], f"{name}.indexer.k_cache": found[INDEXER_1]}
    with pytest.raises(ConfigError, match=r"6 KV caches, .* 4 .*TILERT_PD_NO_MTP and --no-mtp"):
        recognise(found, MlaNsaModel("m", 2, 0), "fp8_ds_mla")


@pytest.mark.parametrize(
    ("blocks", "seq_len", "said"),
    [
        ([1], 65, "65 tokens take 2 blocks of 64; there are 1"),
        ([1, 8], 65, "blocks 1 to 8 are asked for; the cache has 8"),
        ([-1, 2], 65, "blocks -1 to 2 are asked for"),
    ],
)
def test_blocks_that_are_not_there_are_refused(blocks: list[int], seq_len: int, said: str) -> None:
    layout = MlaNsaLayout(model=TINY, dtype="fp8_ds_mla", max_seq_len=100)
    with pytest.raises(ValueError, match=said):
        extracted(small(), layout, blocks, seq_len)


def test_planes_of_another_layout_are_refused() -> None:
    found: PagedCaches = recognise(small(), TINY, "fp8_ds_mla")
    other = MlaNsaLayout(model=TINY, dtype="bf16", max_seq_len=100)
    staging = memoryview(bytearray(other.staging_bytes(2)))
    with pytest.raises(ValueError, match=r"3 layers of 1024 bytes a latent, .* 3 of 528"):
        extract(found, [1], other.staged(staging, 2))
