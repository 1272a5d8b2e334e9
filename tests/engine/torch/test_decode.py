"""The engines' contracts: limits, slots, hand-over, faults, reproducibility."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.engine.torch.answer import GREEDY, answer, prefill
from tests.engine.torch.tiny import Tiny, reference_greedy
from tilert_engine.torch import (
    Checkpoint,
    DecodeSequence,
    KVCache,
    PrefillRun,
    TorchDecode,
    TorchPrefill,
)
from tilert_stream.abc import DecodeEngine, PrefillEngine
from tilert_stream.errors import ConfigError, EngineFault
from tilert_stream.events import Finished, Limits, Sampling

PROMPT = [10, 20, 30, 40, 50]
SEEDED = Sampling(temperature=2.0, seed=11)


@pytest.fixture
def prefill_engine(checkpoint: Checkpoint) -> TorchPrefill:
    return TorchPrefill(checkpoint, max_seq_len=40, chunk=3)


@pytest.fixture
def decode_engine(checkpoint: Checkpoint) -> TorchDecode:
    return TorchDecode(checkpoint, slots=2, max_seq_len=40, ar_steps=4)


def test_the_engines_fit_their_contracts(
    prefill_engine: TorchPrefill, decode_engine: TorchDecode
) -> None:
    first: PrefillEngine[PrefillRun] = prefill_engine
    second: DecodeEngine[DecodeSequence] = decode_engine
    assert (first.max_seq_len, second.max_seq_len, second.slots) == (40, 40, 2)


@pytest.mark.parametrize("count", [1, 2, 3, 16])
def test_met_12_exactly_as_many_tokens_as_asked_for(
    tiny: Tiny, prefill_engine: TorchPrefill, decode_engine: TorchDecode, count: int
) -> None:
    ids, finished = answer(prefill_engine, decode_engine, PROMPT, Limits(count))
    assert ids == reference_greedy(tiny, PROMPT, count)
    assert finished == Finished("length")


@pytest.mark.parametrize("ar_steps", [1, 2, 3, 8, 64])
@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_chain_length_does_not_change_the_answer(
    checkpoint: Checkpoint, prefill_engine: TorchPrefill, ar_steps: int, sampling: Sampling
) -> None:
    short = TorchDecode(checkpoint, slots=1, max_seq_len=40, ar_steps=1)
    other = TorchDecode(checkpoint, slots=1, max_seq_len=40, ar_steps=ar_steps)
    limits = Limits(20)
    expected = answer(prefill_engine, short, PROMPT, limits, sampling)
    assert answer(prefill_engine, other, PROMPT, limits, sampling) == expected


def test_harvests_are_chains_cut_to_the_budget(
    prefill_engine: TorchPrefill, decode_engine: TorchDecode
) -> None:
    limits = Limits(8)
    output = prefill(prefill_engine, PROMPT, limits)
    sequence = decode_engine.open(0, output.kv, output.first.ids[0], limits, GREEDY)
    sizes = [len(decode_engine.advance(sequence).batch.ids) for _ in range(2)]
    assert sizes == [4, 3]


def test_a_stop_token_ends_the_answer_and_is_counted(
    tiny: Tiny, prefill_engine: TorchPrefill, decode_engine: TorchDecode
) -> None:
    expected = reference_greedy(tiny, PROMPT, 20)
    place = next(i for i in range(3, 20) if expected[i] not in expected[:i])
    stop = expected[place]
    ids, finished = answer(
        prefill_engine, decode_engine, PROMPT, Limits(20, stop_ids=frozenset({stop}))
    )
    assert (ids, finished) == (expected[: place + 1], Finished("stop", stop_reason=stop))
    ids, finished = answer(
        prefill_engine, decode_engine, PROMPT, Limits(20, eos_ids=frozenset({stop}))
    )
    assert (ids, finished) == (expected[: place + 1], Finished("stop"))


def test_pd_05_a_first_token_that_stops_says_so(tiny: Tiny, prefill_engine: TorchPrefill) -> None:
    (first,) = reference_greedy(tiny, PROMPT, 1)
    limits = Limits(5, eos_ids=frozenset({first}))
    output = prefill(prefill_engine, PROMPT, limits)
    assert output.first.ids == (first,)
    assert output.first.ends_with_stop


@pytest.mark.parametrize("min_tokens", [1, 2, 7, 12])
def test_pd_03_no_stop_token_before_min_tokens(
    tiny: Tiny, prefill_engine: TorchPrefill, decode_engine: TorchDecode, min_tokens: int
) -> None:
    everything_but_three = frozenset(range(3, tiny.vocab))
    limits = Limits(20, min_tokens=min_tokens, eos_ids=everything_but_three)
    ids, finished = answer(prefill_engine, decode_engine, PROMPT, limits)
    assert all(token < 3 for token in ids[:min_tokens])
    assert len(ids) >= min_tokens
    assert ids[-1] >= 3 or finished.reason == "length"


def test_pd_21_nothing_of_a_request_stays_in_its_slot(
    checkpoint: Checkpoint, prefill_engine: TorchPrefill
) -> None:
    expected: dict[str, tuple[list[int], Finished]] = {}
    (stop,) = answer(
        prefill_engine, TorchDecode(checkpoint, slots=1, max_seq_len=40), PROMPT, Limits(2)
    )[0][1:]
    requests = {
        "ignores eos": (list(range(30)), Limits(10), SEEDED),
        "stops": (PROMPT, Limits(10, eos_ids=frozenset({stop})), GREEDY),
        "masked": (PROMPT, Limits(10, 9, stop_ids=frozenset({stop})), Sampling(seed=3)),
        "plain": (PROMPT, Limits(10), GREEDY),
    }
    for name, (prompt, limits, sampling) in requests.items():
        fresh = TorchDecode(checkpoint, slots=1, max_seq_len=40)
        expected[name] = answer(prefill_engine, fresh, prompt, limits, sampling)
    assert expected["stops"] == (expected["plain"][0][:2], Finished("stop"))
    used = TorchDecode(checkpoint, slots=1, max_seq_len=40)
    for name in (*requests, *reversed(requests)):
        prompt, limits, sampling = requests[name]
        assert answer(prefill_engine, used, prompt, limits, sampling) == expected[name]


def test_a_seed_gives_the_same_answer_in_any_slot_and_beside_any_neighbour(
    prefill_engine: TorchPrefill, decode_engine: TorchDecode
) -> None:
    limits = Limits(16)
    expected, _ = answer(prefill_engine, decode_engine, PROMPT, limits, SEEDED)
    outputs = [prefill(prefill_engine, PROMPT, limits, SEEDED) for _ in range(2)]
    pair = [
        decode_engine.open(slot, output.kv, output.first.ids[0], limits, SEEDED)
        for slot, output in enumerate(outputs)
    ]
    answers = [list(output.first.ids) for output in outputs]
    for _ in range(4):
        for sequence, ids in zip(pair, answers, strict=True):
            ids += decode_engine.advance(sequence).batch.ids
    assert answers == [expected, expected]
    for sequence in pair:
        decode_engine.close(sequence)
    other, _ = answer(prefill_engine, decode_engine, PROMPT, limits, replace(SEEDED, seed=12))
    assert other != expected


def test_the_hand_over_is_copied(prefill_engine: TorchPrefill, decode_engine: TorchDecode) -> None:
    limits = Limits(12)
    expected, _ = answer(prefill_engine, decode_engine, PROMPT, limits)
    output = prefill(prefill_engine, PROMPT, limits)
    sequence = decode_engine.open(0, output.kv, output.first.ids[0], limits, GREEDY)
    with torch.inference_mode():
        output.kv.keys.fill_(torch.nan)
        output.kv.values.fill_(torch.nan)
    ids = list(output.first.ids)
    for _ in range(3):
        ids += decode_engine.advance(sequence).batch.ids
    assert ids == expected


def test_slots_and_sequences_are_used_as_they_are_meant(
    prefill_engine: TorchPrefill, decode_engine: TorchDecode
) -> None:
    limits = Limits(3)
    output = prefill(prefill_engine, PROMPT, limits)
    start = (output.kv, output.first.ids[0], limits, GREEDY)
    for slot in (-1, 2):
        with pytest.raises(RuntimeError, match="does not exist; there are 2"):
            decode_engine.open(slot, *start)
    sequence = decode_engine.open(1, *start)
    with pytest.raises(RuntimeError, match="slot 1 is busy"):
        decode_engine.open(1, *start)
    assert decode_engine.advance(sequence).finished == Finished("length")
    with pytest.raises(RuntimeError, match="finished"):
        decode_engine.advance(sequence)
    decode_engine.close(sequence)
    with pytest.raises(RuntimeError, match="closed"):
        decode_engine.close(sequence)
    reopened = decode_engine.open(1, *start)
    with pytest.raises(RuntimeError, match="closed"):
        decode_engine.advance(sequence)
    assert decode_engine.advance(reopened).finished == Finished("length")


def test_kv_05_the_longest_fits_and_one_more_is_refused(
    prefill_engine: TorchPrefill, decode_engine: TorchDecode
) -> None:
    ids, finished = answer(prefill_engine, decode_engine, PROMPT, Limits(35))
    assert (len(ids), finished.reason) == (35, "length")
    with pytest.raises(EngineFault, match=r"5 tokens and max_tokens 36 .* max_seq_len 40"):
        prefill_engine.open(PROMPT, Limits(36), GREEDY)
    output = prefill(prefill_engine, PROMPT, Limits(2))
    with pytest.raises(EngineFault, match=r"5 tokens and max_tokens 36 .* max_seq_len 40"):
        decode_engine.open(0, output.kv, 1, Limits(36), GREEDY)


def test_kv_06_another_layout_is_refused_with_both_values(
    prefill_engine: TorchPrefill, decode_engine: TorchDecode
) -> None:
    kv = prefill(prefill_engine, PROMPT, Limits(2)).kv
    wrong = {
        "model is other, this engine's is tiny": replace(kv, model="other"),
        r"keys is \(2, 2, 5, 4\), this engine's is \(2, 2, 5, 8\)": replace(
            kv, keys=kv.keys[..., :4]
        ),
        r"keys is \(1, 2, 5, 8\), this engine's is \(2, 2, 5, 8\)": replace(kv, keys=kv.keys[:1]),
        r"values is \(2, 2, 4, 8\), this engine's is \(2, 2, 5, 8\)": replace(
            kv, values=kv.values[:, :, :4]
        ),
        "dtype of values is torch.bfloat16, this engine's is torch.float32": replace(
            kv, values=kv.values.bfloat16()
        ),
    }
    for message, cache in wrong.items():
        with pytest.raises(EngineFault, match=message):
            decode_engine.open(0, cache, 1, Limits(2), GREEDY)
    with pytest.raises(EngineFault, match="a str, this engine takes a KVCache"):
        decode_engine.open(0, "no cache", 1, Limits(2), GREEDY)
    # A refused cache leaves the slot free.
    decode_engine.close(decode_engine.open(0, kv, 1, Limits(2), GREEDY))


def test_ids_outside_the_vocabulary_are_refused(
    tiny: Tiny, prefill_engine: TorchPrefill, decode_engine: TorchDecode
) -> None:
    for strange in (-1, tiny.vocab):
        with pytest.raises(EngineFault, match=f"{strange}; ids are 0 to {tiny.vocab - 1}"):
            prefill_engine.open([1, strange], Limits(1), GREEDY)
        kv = prefill(prefill_engine, PROMPT, Limits(2)).kv
        with pytest.raises(EngineFault, match=f"{strange}; ids are 0 to {tiny.vocab - 1}"):
            decode_engine.open(0, kv, strange, Limits(2), GREEDY)
    with pytest.raises(EngineFault, match="0 tokens"):
        prefill_engine.open([], Limits(1), GREEDY)


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_nan_fails_one_request_and_no_other(
    checkpoint: Checkpoint, decode_engine: TorchDecode, sampling: Sampling
) -> None:
    prefill_engine = TorchPrefill(checkpoint, max_seq_len=40)
    limits = Limits(6)
    kv = prefill(prefill_engine, PROMPT, limits).kv
    broken = KVCache(kv.model, kv.keys, torch.full_like(kv.values, torch.nan))
    sick = decode_engine.open(0, broken, 1, limits, sampling)
    with pytest.raises(EngineFault, match="nan"):
        decode_engine.advance(sick)
    decode_engine.close(sick)
    expected = answer(prefill_engine, decode_engine, PROMPT, limits, slot=1)
    assert answer(prefill_engine, decode_engine, PROMPT, limits, slot=0) == expected


def test_nan_in_a_prompt_is_a_fault(checkpoint: Checkpoint) -> None:
    norm = torch.full_like(checkpoint.weights.norm, torch.nan)
    sick = replace(checkpoint, weights=replace(checkpoint.weights, norm=norm))
    with pytest.raises(EngineFault, match="nan"):
        prefill(TorchPrefill(sick, max_seq_len=40), PROMPT, Limits(1))


def test_an_answer_whose_every_token_is_masked_is_a_fault(
    tiny: Tiny, prefill_engine: TorchPrefill
) -> None:
    limits = Limits(5, min_tokens=5, stop_ids=frozenset(range(tiny.vocab)))
    with pytest.raises(EngineFault, match="-inf"):
        prefill(prefill_engine, PROMPT, limits)


def test_a_given_up_prompt_frees_its_buffer(prefill_engine: TorchPrefill) -> None:
    run = prefill_engine.open(PROMPT, Limits(1), GREEDY)
    assert prefill_engine.advance(run) is None
    assert run.buffer is not None
    prefill_engine.close(run)
    prefill_engine.close(run)
    assert run.buffer is None


def test_parameters_out_of_range_are_named(checkpoint: Checkpoint) -> None:
    for max_seq_len in (1, 65):
        with pytest.raises(ConfigError, match=f"max_seq_len is {max_seq_len}; tiny takes 2 to 64"):
            TorchPrefill(checkpoint, max_seq_len=max_seq_len)
        with pytest.raises(ConfigError, match=f"max_seq_len is {max_seq_len}; tiny takes 2 to 64"):
            TorchDecode(checkpoint, slots=1, max_seq_len=max_seq_len)
    with pytest.raises(ConfigError, match="slots is 0"):
        TorchDecode(checkpoint, slots=0, max_seq_len=8)
    with pytest.raises(ConfigError, match="ar_steps is 0"):
        TorchDecode(checkpoint, slots=1, max_seq_len=8, ar_steps=0)
    with pytest.raises(ConfigError, match="chunk is 0"):
        TorchPrefill(checkpoint, max_seq_len=8, chunk=0)
