"""The connector on caches of MLA with an NSA indexer: what it recognises, refuses and reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from types import ModuleType

import pytest
import torch

from tests.engine.glm.asking import stored
from tests.nodes.glm_vllm import LAYERS, MAIN_LAYERS, GlmVllm, paged_caches
from tests.nodes.test_vllm_worker import FakeSender
from tests.nodes.vllm_stand_in import (
    Caches,
    Config,
    FullAttentionSpec,
    Group,
    MLAAttentionSpec,
    Model,
    Parallel,
    TextConfig,
    Transfer,
    connect,
    imported_plugin,
)
from tilert_engine.glm import Built, build
from tilert_engine.layouts.abc import KVLayout
from tilert_engine.layouts.mla_nsa import MlaNsaLayout
from tilert_engine.layouts.mla_nsa_model import CacheDtype, MlaNsaModel
from tilert_stream.errors import ConfigError
from tilert_stream.nodes.hand_over.destination import Destination, Grant, params_for
from tilert_stream.nodes.vllm.mla_nsa_reader import MlaNsaReader

PARAMS = params_for(Destination("node", 5556, Grant("a1", "d-1", 1)))
PROMPT = next(answer.prompt for answer in stored() if len(answer.prompt) > 128)
"""Three blocks, the last of them partly filled."""
TINY = MlaNsaModel("tiny-glm5", MAIN_LAYERS, 1)
DTYPES: list[CacheDtype] = ["fp8_ds_mla", "bf16"]

dtypes = pytest.mark.parametrize("dtype", DTYPES)


@pytest.fixture
def plugin() -> Iterator[ModuleType]:
    with imported_plugin() as module:
        yield module


@pytest.fixture
def senders(plugin: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[FakeSender]:
    made: list[FakeSender] = []

    def make_sender(_self: object, layout: KVLayout, rank: int) -> FakeSender:
        made.append(FakeSender(layout, rank))
        return made[-1]

    monkeypatch.setattr(plugin.TilertStreamConnector, "make_sender", make_sender)
    return made


@pytest.fixture(scope="module", params=DTYPES)
def built(request: pytest.FixtureRequest) -> Built:
    return build(slots=1, max_seq_len=256, cache_dtype=request.param, threads=1)


@pytest.mark.parametrize("head", [False, True])
@pytest.mark.parametrize(
    ("chunk", "preempted"), [(256, False), (50, False), (64, False), (50, True)]
)
def test_what_is_staged_is_what_our_own_prefill_packs(
    plugin: ModuleType,
    senders: list[FakeSender],
    built: Built,
    head: bool,
    chunk: int,
    preempted: bool,
) -> None:
    dtype = built.cache_dtype
    vllm = GlmVllm(plugin, built.prefill, dtype, {}, head=head)
    (sender,) = senders
    assert sender.layout == MlaNsaLayout(model=TINY, dtype=dtype, max_seq_len=256)
    packed = memoryview(bytearray(sender.layout.staging_bytes(len(PROMPT))))
    sender.layout.pack(vllm.cached(PROMPT), packed)
    for request in ("whole", "hits"):
        vllm.prefill(request, PROMPT, PARAMS, chunk=chunk, preempted=preempted)
        assert sender.begun[request].did == ["send"]
        assert sender.begun[request].staging == packed
    assert vllm.computed[-1] == len(PROMPT) - 128, "the second one has two blocks' hits"


@dtypes
def test_a_block_table_of_several_pages_a_block(dtype: CacheDtype) -> None:
    """vLLM's own blocks may be multiples of what its kernels, and the tensors, have."""
    caches = paged_caches(dtype)
    for cache in caches.values():
        view = cache.view(torch.uint8)
        view.copy_(torch.arange(view.shape[0]).view(-1, 1, 1))
    reader = read(caches, block_size=128)
    staging = memoryview(bytearray(reader.layout.staging_bytes(150)))
    reader.read([7, 2], 150, staging)
    planes = reader.layout.staged(staging, 150)
    assert torch.equal(planes.kv[1, :, 0], torch.tensor([14] * 64 + [15] * 64 + [4] * 22))
    assert torch.equal(planes.ki[1, :, 0], torch.tensor([14, 15, 4]))


def read(
    caches: dict[str, torch.Tensor],
    *,
    named: str | None = None,
    directory: str = "tiny-glm5",
    model_type: str = "glm_moe_dsa",
    main_layers: int = MAIN_LAYERS,
    block_size: int = 64,
    no_mtp: str = "",
) -> MlaNsaReader:
    return MlaNsaReader.of(
        caches,
        named=named,
        directory=directory,
        model_type=model_type,
        main_layers=main_layers,
        environment={"TILERT_PD_NO_MTP": no_mtp},
        max_seq_len=256,
        block_size=block_size,
    )


def without(part: str) -> dict[str, torch.Tensor]:
    return {name: cache for name, cache in paged_caches("bf16").items() if part not in name}


def with_rows(layer: int, nbytes: int) -> dict[str, torch.Tensor]:
    """One layer's latents are of another kind than the others'."""
    rows = torch.zeros(9, 64, nbytes).byte()
    return {**paged_caches("bf16"), f"model.layers.{layer}.self_attn.attn": rows}


def of_layers(count: int) -> dict[str, torch.Tensor]:
    """Empty caches of a large model, under its names."""
    rows, pages = torch.zeros(1, 64, 656).byte(), torch.zeros(1, 64, 132).byte()
    return {
        f"model.layers.{layer}.self_attn.{name}": cache
        for layer in range(count)
        for name, cache in (("attn", rows), ("indexer.k_cache", pages))
    }


@dtypes
def test_the_dtype_is_that_of_the_rows(dtype: CacheDtype) -> None:
    assert read(paged_caches(dtype)).layout.dtype == dtype


@pytest.mark.parametrize(
    ("named", "directory", "model_type", "main", "no_mtp", "version"),
    [
        (None, "GLM-5", "", 78, "", 10),
        (None, "GLM-5.1-FP8", "glm_moe_dsa", 78, "", 10),
        (None, "GLM-5.1-FP8", "glm_moe_dsa", 78, "1", 1010),
        ("glm5", "snapshot-3", "", 78, "0", 10),
        (None, "DeepSeek-V3.2-Exp", "deepseek_v32", 61, "", 11),
        (None, "DeepSeek-V3.2-Exp", "deepseek_v32", 61, "1", 11),
        ("dsv32", "x", "", 61, "", 11),
        ("mine", "GLM-5", "glm_moe_dsa", 78, "", 207_800),
    ],
)
def test_tilerts_models_are_known_by_name_or_by_their_type(
    named: str | None, directory: str, model_type: str, main: int, no_mtp: str, version: int
) -> None:
    drafts = 0 if version == 1010 else 1
    reader = read(
        of_layers(main + drafts),
        named=named,
        directory=directory,
        model_type=model_type,
        main_layers=main,
        no_mtp=no_mtp,
    )
    assert reader.layout.version == version


def test_a_model_of_ones_own_has_the_draft_layers_that_vllm_registers() -> None:
    assert read(paged_caches("bf16")).layout.model == TINY
    layout = read(without(f"layers.{MAIN_LAYERS}.")).layout
    assert layout.model == MlaNsaModel("tiny-glm5", MAIN_LAYERS, 0)


@pytest.mark.parametrize(
    ("caches", "options", "said"),
    [
        (without("indexer"), {}, "5 KV caches are latents without an NSA indexer's"),
        (without(".attn"), {}, "none of vLLM's 5 KV caches is one of latents"),
        (without("layers.2."), {}, r"layers\); missing: indexer of layer 2, latent of layer 2"),
        (
            of_layers(78),
            {"named": "glm5", "main_layers": 78},
            "draft layer's are missing; give vLLM --speculative-config .*TILERT_PD_NO_MTP=1 to bo",
        ),
        (paged_caches("bf16"), {"no_mtp": "1"}, "has a draft layer that the layout leaves out"),
        (paged_caches("bf16"), {"no_mtp": "yes"}, "TILERT_PD_NO_MTP is 'yes'; give 1 "),
        (paged_caches("bf16"), {"named": "glm5"}, "10 KV caches, the layout of glm5 158 "),
        (paged_caches("bf16"), {"block_size": 96}, "blocks of 96 tokens, .* --block-size 64"),
        (
            with_rows(0, 576),
            {},
            "rows 576 bytes apart; 656 .fp8_ds_mla. or 1152 .bf16. are needed: .*--kv-cache-dtype",
        ),
        (
            with_rows(1, 656),
            {},
            r"rows of 656 bytes, .*\(fp8_ds_mla\), the layout of 1152 \(bf16\); .*-dtype bfloat16",
        ),
    ],
)
def test_kv_06_what_is_no_such_cache_is_refused_at_the_start(
    caches: dict[str, torch.Tensor], options: dict[str, object], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        read(caches, **options)  # type: ignore[arg-type] # a table of options


def tiny(rank: int = 0) -> Config:
    model = Model("models/tiny-glm5", 256, TextConfig("glm_moe_dsa"), MAIN_LAYERS)
    return Config(Transfer(), model, Parallel(tensor_parallel_size=4, rank=rank))


def test_of_all_ranks_the_first_one_sends(plugin: ModuleType, senders: list[FakeSender]) -> None:
    for rank in range(4):
        worker = connect(plugin, tiny(rank), Caches([Group(MLAAttentionSpec())]))
        worker.register_kv_caches(paged_caches("bf16"))
    assert [sender.rank for sender in senders] == [0]
    assert senders[0].layout.sender_ranks == (0,)
    assert senders[0].layout.planes[0].layers == LAYERS


@pytest.mark.parametrize("spec", [FullAttentionSpec(64), MLAAttentionSpec()])
def test_caches_that_are_not_what_vllm_says_are_refused(
    plugin: ModuleType, senders: list[FakeSender], spec: FullAttentionSpec
) -> None:
    """Latents that are told as keys and values, and the other way round."""
    caches = paged_caches("bf16")
    if isinstance(spec, MLAAttentionSpec):
        caches = {f"layers.{layer}.attn": torch.zeros(4, 2, 64, 6) for layer in range(2)}
    worker = connect(plugin, tiny(), Caches([Group(spec)]))
    with pytest.raises(ConfigError, match=r"no number of its own|without an NSA indexer"):
        worker.register_kv_caches(caches)
    assert senders == []


def test_the_real_sender_takes_the_layout(plugin: ModuleType, built: Built) -> None:
    extra = {"transport": "memory", "staging_bytes": 4 << 20}
    with closing(GlmVllm(plugin, built.prefill, built.cache_dtype, extra)):
        pass
