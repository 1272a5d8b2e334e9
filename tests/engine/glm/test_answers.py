"""The answer is the model's, whichever way it is computed."""

from __future__ import annotations

import pytest

from tests.engine.glm.asking import GREEDY, Answer, decode, prefill
from tests.engine.layouts.carry import landed
from tilert_engine.glm import Built, GLMCheckpoint, GLMDecode, GLMPrefill
from tilert_engine.layouts.landed import LandedKV, LandingDecode
from tilert_engine.layouts.mla_nsa import MlaNsaLayout
from tilert_engine.layouts.mla_nsa_cache import CachedKV
from tilert_engine.layouts.mla_nsa_model import CacheDtype
from tilert_stream.events import Limits, Sampling

TOKENS = 40
LIMITS = Limits(TOKENS)


def engine(checkpoint: GLMCheckpoint, *, drafts: int, ar_steps: int = 1) -> GLMDecode:
    return GLMDecode(checkpoint, slots=1, max_seq_len=512, drafts=drafts, ar_steps=ar_steps)


def fp8(answers: list[Answer]) -> list[Answer]:
    return [answer for answer in answers if answer.cache]


@pytest.mark.parametrize("ar_steps", [1, 8, 64])
@pytest.mark.parametrize("drafts", [0, 1, 3, 5])
def test_drafts_and_chains_change_nothing(
    checkpoint: GLMCheckpoint,
    prefiller: GLMPrefill,
    answers: list[Answer],
    drafts: int,
    ar_steps: int,
) -> None:
    decoder = engine(checkpoint, drafts=drafts, ar_steps=ar_steps)
    for answer in fp8(answers):
        output = prefill(prefiller, answer.prompt, LIMITS)
        assert output.usage.prompt_tokens == len(answer.prompt)
        ids, finished = decode(decoder, output.kv, output.first.ids[0], LIMITS)
        answer.agrees(ids)
        assert finished.reason == "length"


@pytest.mark.parametrize(("dtype", "tie"), [("bf16", 0.16), ("fp8_ds_mla", 0.3)])
def test_the_answer_is_the_references_up_to_the_caches_rounding(
    checkpoint: GLMCheckpoint, built: Built, answers: list[Answer], dtype: CacheDtype, tie: float
) -> None:
    prefiller = GLMPrefill(checkpoint, max_seq_len=512, cache_dtype=dtype)
    exact = [answer for answer in answers if not answer.cache]
    for answer in exact:
        output = prefill(prefiller, answer.prompt, LIMITS)
        ids, _ = decode(built.decode, output.kv, output.first.ids[0], LIMITS)
        answer.agrees(ids, least=tie)


@pytest.mark.parametrize("dtype", ["bf16", "fp8_ds_mla"])
def test_divided_is_undivided(
    checkpoint: GLMCheckpoint, built: Built, answers: list[Answer], dtype: CacheDtype
) -> None:
    prefiller = GLMPrefill(checkpoint, max_seq_len=512, cache_dtype=dtype)
    layout = MlaNsaLayout(model=checkpoint.cached, dtype=dtype, max_seq_len=256)
    divided = LandingDecode(built.decode, layout)
    for answer in fp8(answers):
        output = prefill(prefiller, answer.prompt, LIMITS)
        first = output.first.ids[0]
        whole, _ = decode(built.decode, output.kv, first, LIMITS)
        tokens = len(answer.prompt)
        region = LandedKV(landed(layout, output.kv, tokens), tokens)
        sequence = divided.open(1, region, first, LIMITS, GREEDY)
        ids, finished = [first], None
        while finished is None:
            harvest = divided.advance(sequence)
            ids += harvest.batch.ids
            finished = harvest.finished
        divided.close(sequence)
        assert ids == whole


@pytest.mark.parametrize("chunk", [1, 64, 100])
def test_the_chunks_of_prefill_change_nothing(
    checkpoint: GLMCheckpoint, built: Built, answers: list[Answer], chunk: int
) -> None:
    prefiller = GLMPrefill(checkpoint, max_seq_len=512, chunk=chunk)
    answer = fp8(answers)[-1]
    output = prefill(prefiller, answer.prompt, LIMITS)
    ids, _ = decode(built.decode, output.kv, output.first.ids[0], LIMITS)
    answer.agrees(ids)


def test_the_cache_has_vllms_formats(prefiller: GLMPrefill, answers: list[Answer]) -> None:
    prompt = answers[-1].prompt
    kv = prefill(prefiller, prompt, LIMITS).kv
    assert isinstance(kv, CachedKV)
    assert kv.model == "tiny-glm5"
    assert tuple(kv.rows.shape) == (5, len(prompt), 656)
    assert tuple(kv.pages.shape) == (5, -(-len(prompt) // 64), 8448)
    # Every layer of it is written, the draft's as well.
    assert all(bool(layer.any(-1).all()) for layer in kv.rows)


@pytest.mark.parametrize("sampling", [Sampling(seed=1), Sampling(0.7, top_p=0.9, seed=2)])
def test_a_seed_gives_the_same_answer_with_drafts_and_without(
    checkpoint: GLMCheckpoint, prefiller: GLMPrefill, answers: list[Answer], sampling: Sampling
) -> None:
    plain, drafting = (engine(checkpoint, drafts=drafts) for drafts in (0, 3))
    said: set[tuple[int, ...]] = set()
    for answer in fp8(answers):
        output = prefill(prefiller, answer.prompt, LIMITS, sampling)
        first = output.first.ids[0]
        ids, _ = decode(plain, output.kv, first, LIMITS, sampling)
        drafted, _ = decode(drafting, output.kv, first, LIMITS, sampling)
        assert drafted == ids
        said.add(tuple(ids))
    assert len(said) == len(fp8(answers))
