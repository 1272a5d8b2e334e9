"""The demo model: its greedy answers are those of transformers, token by token."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypedDict, cast

import pytest

from tests.engine.torch.answer import answer, prefill
from tilert_engine.torch import Built, build
from tilert_stream.events import Limits, Sampling

DATA = Path(__file__).parents[2] / "data" / "smollm2_greedy.json"

pytestmark = pytest.mark.model


class Case(TypedDict):
    prompt: str
    prompt_ids: list[int]
    ids: list[int]


CASES = cast("list[Case]", json.loads(DATA.read_text(encoding="utf-8"))["cases"])


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> Built:
    return build(smollm2_path, slots=2, max_seq_len=512, ar_steps=8, device="cpu")


@pytest.mark.parametrize("case", CASES, ids=[case["prompt"][:24] for case in CASES])
def test_text_becomes_the_same_ids(smollm2: Built, case: Case) -> None:
    assert smollm2.checkpoint.tokenizer.encode(case["prompt"]).ids == case["prompt_ids"]


@pytest.mark.parametrize("case", CASES, ids=[case["prompt"][:24] for case in CASES])
def test_greedy_answers_equal_those_of_transformers(smollm2: Built, case: Case) -> None:
    limits = Limits(len(case["ids"]), eos_ids=smollm2.checkpoint.eos_ids)
    ids, _ = answer(smollm2.prefill, smollm2.decode, case["prompt_ids"], limits)
    assert ids == case["ids"]


def test_it_knows_the_capital_of_france(smollm2: Built) -> None:
    limits = Limits(20, eos_ids=smollm2.checkpoint.eos_ids)
    ids, finished = answer(smollm2.prefill, smollm2.decode, CASES[0]["prompt_ids"], limits)
    assert finished.reason == "stop"
    text = smollm2.checkpoint.tokenizer.decode(ids)
    assert text == "The capital of France is Paris."


def test_neighbours_do_not_disturb_each_other(smollm2: Built) -> None:
    limits = Limits(17)
    greedy = Sampling(temperature=0)
    cases = [CASES[2], CASES[3]]
    outputs = [prefill(smollm2.prefill, case["prompt_ids"], limits) for case in cases]
    sequences = [
        smollm2.decode.open(slot, output.kv, output.first.ids[0], limits, greedy)
        for slot, output in enumerate(outputs)
    ]
    answers = [list(output.first.ids) for output in outputs]
    for _ in range(2):
        for sequence, ids in zip(sequences, answers, strict=True):
            ids += smollm2.decode.advance(sequence).batch.ids
    for sequence in sequences:
        smollm2.decode.close(sequence)
    assert answers == [case["ids"][:17] for case in cases]
