"""Bad input is refused with both values named, and the next request is served."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import (
    load_file,  # pyright: ignore[reportUnknownVariableType] -- its paths are
    save_file,  # pyright: ignore[reportUnknownVariableType] -- its paths are
)

from tests.engine.glm.asking import GREEDY, Answer, decode, prefill
from tilert_engine.glm import Built, GLMCheckpoint, GLMDecode, GLMPrefill, build
from tilert_engine.layouts.mla_nsa_cache import CachedKV, ImportedKV, import_planes
from tilert_engine.models.tiny_glm5 import TINY_GLM5
from tilert_stream.errors import ConfigError, EngineFault
from tilert_stream.events import Limits

LIMITS = Limits(8)


@pytest.fixture
def kv(prefiller: GLMPrefill, answers: list[Answer]) -> CachedKV:
    cached = prefill(prefiller, answers[1].prompt, LIMITS).kv
    assert isinstance(cached, CachedKV)
    return cached


def refused(built: Built, kv: object, first: int, limits: Limits, *says: str) -> None:
    with pytest.raises(EngineFault) as caught:
        built.decode.open(0, kv, first, limits, GREEDY)
    for text in says:
        assert text in caught.value.message


def serves(built: Built, kv: CachedKV, answers: list[Answer]) -> None:
    ids, _ = decode(built.decode, kv, answers[1].ids[0], LIMITS)
    assert ids == answers[1].ids[:8]


def test_caches_that_are_not_this_models(built: Built, kv: CachedKV, answers: list[Answer]) -> None:
    refused(built, b"", 1, LIMITS, "bytes", "CachedKV")
    refused(built, replace(kv, model="glm5"), 1, LIMITS, "glm5", "tiny-glm5")
    no_draft = replace(kv, rows=kv.rows[:4], pages=kv.pages[:4])
    refused(built, no_draft, 1, LIMITS, "number of layers is 4", "5", "draft layer")
    refused(built, kv, 2048, LIMITS, "2048", "2047")
    refused(built, kv, 1, Limits(510), "12", "510", "512")
    serves(built, kv, answers)


def test_damaged_numbers_fail_their_request_alone(
    built: Built, kv: CachedKV, answers: list[Answer]
) -> None:
    imported = import_planes(kv.model, kv.planes)
    latents = imported.kv.clone()
    latents[2, 3, 4] = torch.nan
    damaged = ImportedKV(imported.model, imported.ki, latents, imported.pe)
    sequence = built.decode.open(0, damaged, answers[1].ids[0], LIMITS, GREEDY)
    with pytest.raises(EngineFault, match="not finite"):
        built.decode.advance(sequence)
    built.decode.close(sequence)
    serves(built, kv, answers)


def test_a_slot_is_one_sequences(built: Built, kv: CachedKV) -> None:
    decoder = built.decode
    sequence = decoder.open(0, kv, 5, LIMITS, GREEDY)
    with pytest.raises(RuntimeError, match="busy"):
        decoder.open(0, kv, 5, LIMITS, GREEDY)
    with pytest.raises(RuntimeError, match="does not exist"):
        decoder.open(2, kv, 5, LIMITS, GREEDY)
    while decoder.advance(sequence).finished is None:
        pass
    with pytest.raises(RuntimeError, match="finished"):
        decoder.advance(sequence)
    decoder.close(sequence)
    with pytest.raises(RuntimeError, match="closed"):
        decoder.advance(sequence)
    with pytest.raises(RuntimeError, match="closed"):
        decoder.close(sequence)


def test_two_slots_do_not_touch(built: Built, answers: list[Answer]) -> None:
    decoder = built.decode
    asked = [answer for answer in answers if answer.cache][1:3]
    sequences = [
        decoder.open(
            slot,
            prefill(built.prefill, answer.prompt, LIMITS).kv,
            answer.ids[0],
            LIMITS,
            GREEDY,
        )
        for slot, answer in enumerate(asked)
    ]
    said = [[answer.ids[0]] for answer in asked]
    running = [0, 1]
    while running:
        for slot in tuple(running):
            harvest = decoder.advance(sequences[slot])
            said[slot] += harvest.batch.ids
            if harvest.finished:
                running.remove(slot)
                decoder.close(sequences[slot])
    assert said == [answer.ids[:8] for answer in asked]


def test_prompts_that_cannot_be_computed(prefiller: GLMPrefill) -> None:
    for prompt, limits, says in (
        ([], LIMITS, "0 tokens"),
        ([1, 2048], LIMITS, "2048"),
        ([-1], LIMITS, "-1"),
        ([1] * 505, LIMITS, "505"),
    ):
        with pytest.raises(EngineFault, match=says):
            prefiller.open(prompt, limits, GREEDY)
    run = prefiller.open([1, 2, 3], LIMITS, GREEDY)
    prefiller.close(run)
    with pytest.raises(RuntimeError, match="over"):
        prefiller.advance(run)


def test_options_out_of_range(checkpoint: GLMCheckpoint) -> None:
    for options, says in (
        ({"max_seq_len": 2049}, "2049"),
        ({"max_seq_len": 1}, "max_seq_len is 1"),
        ({"max_seq_len": 64, "slots": 0}, "slots is 0"),
        ({"max_seq_len": 64, "drafts": -1}, "drafts is -1"),
        ({"max_seq_len": 64, "ar_steps": 0}, "ar_steps is 0"),
    ):
        with pytest.raises(ConfigError, match=says):
            GLMDecode(checkpoint, **{"slots": 1, **options})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="chunk is 0"):
        GLMPrefill(checkpoint, max_seq_len=64, chunk=0)
    with pytest.raises(ConfigError, match="threads is 0"):
        build(threads=0)


def copied(tmp_path: Path) -> Path:
    return Path(shutil.copytree(TINY_GLM5, tmp_path / "model"))


def test_damaged_checkpoints(tmp_path: Path) -> None:
    path = copied(tmp_path)
    (path / "tokenizer.json").rename(path / "elsewhere.json")
    with pytest.raises(ConfigError, match=r"no tokenizer\.json"):
        build(path)
    (path / "elsewhere.json").rename(path / "tokenizer.json")
    config = json.loads((path / "config.json").read_text())
    for field, value, says in (
        ("hidden_size", "wide", "hidden_size is 'wide'"),
        ("hidden_size", 128, r"\(2048, 256\).*\(2048, 128\)"),
        ("kv_lora_rank", 256, "kv_lora_rank is 256; this engine takes 512"),
        ("index_topk", 0, "index_topk is 0"),
        ("num_hidden_layers", 5, "missing"),
    ):
        (path / "config.json").write_text(json.dumps({**config, field: value}))
        with pytest.raises(ConfigError, match=says):
            build(path)
    (path / "config.json").write_text(json.dumps(config))
    tensors = load_file(path / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, path / "model.safetensors")
    with pytest.raises(ConfigError, match=r"'model\.norm\.weight' is missing"):
        build(path)
