"""Chains that the device takes by itself give what the host gives step by step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.engine.torch.answer import GREEDY, answer, prefill
from tests.engine.torch.tiny import Tiny, write_huggingface
from tilert_engine.torch import Checkpoint, TorchDecode, TorchPrefill, load
from tilert_engine.torch.device_queue import WARMING, DeviceQueue
from tilert_engine.torch.device_sampler import PLAIN_WAYS, DeviceSampler, Pick, Way
from tilert_engine.torch.lane import windows
from tilert_engine.torch.lanes import ChainOptions
from tilert_engine.torch.sampler import Sampler
from tilert_stream.errors import EngineFault
from tilert_stream.events import Limits, Sampling

PROMPT = [72, 101, 108, 108, 111, 44, 220]
LONGEST = 48
SAMPLINGS = [
    pytest.param(GREEDY, id="greedy"),
    pytest.param(Sampling(seed=4), id="plain"),
    pytest.param(Sampling(seed=4, min_p=0.1), id="min_p"),
    pytest.param(Sampling(seed=4, top_k=40), id="top_k"),
    pytest.param(Sampling(seed=4, top_p=0.9), id="top_p"),
    pytest.param(Sampling(seed=4, top_k=9, top_p=0.9, min_p=0.01), id="all"),
]
PENALISED = Sampling(
    seed=4,
    temperature=0.8,
    presence_penalty=0.7,
    frequency_penalty=0.4,
    repetition_penalty=1.3,
    prompt_tokens=frozenset(PROMPT),
    logit_bias=((40, 3.0), (72, -100.0), (99_999, 5.0)),
)
ADJUSTED = [
    pytest.param(replace(GREEDY, presence_penalty=1.5), id="presence"),
    pytest.param(replace(GREEDY, frequency_penalty=0.9), id="frequency"),
    pytest.param(
        replace(GREEDY, repetition_penalty=1.7, prompt_tokens=frozenset(PROMPT)), id="repetition"
    ),
    pytest.param(replace(GREEDY, logit_bias=((40, 4.0), (41, -100.0))), id="bias"),
    pytest.param(PENALISED, id="penalised"),
    pytest.param(replace(PENALISED, top_p=0.8), id="penalised-top_p"),
]
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
DEVICES = [
    pytest.param(("cpu", False), id="cpu"),
    pytest.param(("cuda", False), id="cuda", marks=needs_cuda),
    pytest.param(("cuda", True), id="graphs", marks=needs_cuda),
]


class Made:
    """The reference, which is the CPU step by step, and engines to compare with it."""

    def __init__(self, path: Path, device: str, *, graphs: bool) -> None:
        self.prefill = TorchPrefill(self._load(path, "cpu"), max_seq_len=LONGEST)
        self.reference = TorchDecode(self._load(path, "cpu"), slots=1, max_seq_len=LONGEST)
        self.checkpoint = self._load(path, device)
        self._options = ChainOptions(on_device=True, graphs=graphs, early=False, least_window=16)

    @staticmethod
    def _load(path: Path, device: str) -> Checkpoint:
        return load(path, dtype=torch.float32, device=torch.device(device))

    def engine(self, ar_steps: int = 5, *, ahead: bool = True) -> TorchDecode:
        chains = replace(self._options, ahead=ahead)
        return TorchDecode(
            self.checkpoint, slots=2, max_seq_len=LONGEST, ar_steps=ar_steps, chains=chains
        )


@pytest.fixture(scope="module", params=DEVICES)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    device, graphs = request.param
    path = write_huggingface(Tiny(), tmp_path_factory.mktemp("chained") / "tiny")
    return Made(path, device, graphs=graphs)


@pytest.mark.parametrize("ahead", [True, False], ids=["ahead", "serial"])
@pytest.mark.parametrize("ar_steps", [1, 8, 64])
@pytest.mark.parametrize("sampling", [*SAMPLINGS, *ADJUSTED])
def test_a_chain_gives_what_single_steps_give(
    made: Made, sampling: Sampling, ar_steps: int, ahead: bool
) -> None:
    limits = Limits(36)
    expected = answer(made.prefill, made.reference, PROMPT, limits, sampling)
    engine = made.engine(ar_steps, ahead=ahead)
    got, finished = answer(made.prefill, engine, PROMPT, limits, sampling)
    assert (got, finished) == expected
    assert finished.account == {"forwards": 35, "overrun": 0, "finish_reason": "length"}


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("place", [3, 9, 20])
def test_a_stop_token_ends_an_answer_where_it_comes(
    made: Made, sampling: Sampling, place: int
) -> None:
    ids, _ = answer(made.prefill, made.reference, PROMPT, Limits(36), sampling)
    limits = Limits(36, min_tokens=2, stop_ids=frozenset({ids[place]}))
    expected = answer(made.prefill, made.reference, PROMPT, limits, sampling)
    got, finished = answer(made.prefill, made.engine(8), PROMPT, limits, sampling, slot=1)
    assert (got, finished) == expected
    assert finished.account is not None
    forwards, overrun = finished.account["forwards"], finished.account["overrun"]
    assert isinstance(forwards, int)
    assert isinstance(overrun, int)
    # What ran behind the stop token: the rest of its chain, and what was risked behind that.
    assert forwards - overrun == len(got) - 1
    assert overrun <= 2 * 8


def test_a_sequence_that_is_given_up_leaves_nothing_behind(made: Made) -> None:
    limits = Limits(36)
    expected = answer(made.prefill, made.reference, PROMPT, limits)
    engine = made.engine(8)
    kv = prefill(made.prefill, PROMPT[:3], limits).kv
    for _ in range(3):
        sequence = engine.open(0, kv, 9, limits, Sampling(seed=1))
        engine.advance(sequence)
        engine.close(sequence)
    assert answer(made.prefill, engine, PROMPT, limits) == expected


def test_two_slots_take_turns(made: Made) -> None:
    limits, engine = Limits(30), made.engine(4)
    samplings = (GREEDY, Sampling(seed=7, top_p=0.8))
    expected = [answer(made.prefill, made.reference, PROMPT, limits, each)[0] for each in samplings]
    opened = [
        (
            prefilled.first.ids[0],
            engine.open(slot, prefilled.kv, prefilled.first.ids[0], limits, each),
        )
        for slot, each in enumerate(samplings)
        for prefilled in [prefill(made.prefill, PROMPT, limits, each)]
    ]
    got = [[first] for first, _ in opened]
    while any(sequence.ledger.finished is None for _, sequence in opened):
        for ids, (_, sequence) in zip(got, opened, strict=True):
            if sequence.ledger.finished is None:
                ids += engine.advance(sequence).batch.ids
    assert got == expected


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_nan_is_told_and_leaves_the_slot_usable(made: Made, sampling: Sampling) -> None:
    limits, engine = Limits(12), made.engine()
    expected = answer(made.prefill, made.reference, PROMPT, limits, sampling)
    kv = prefill(made.prefill, PROMPT, limits).kv
    broken = replace(kv, values=torch.full_like(kv.values, torch.nan))
    sick = engine.open(0, broken, 1, limits, sampling)
    with pytest.raises(EngineFault, match="nan"):
        engine.advance(sick)
    engine.close(sick)
    assert answer(made.prefill, engine, PROMPT, limits, sampling) == expected


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("vocab", [7, 300, 2000])
def test_the_device_draws_what_the_sampler_draws(sampling: Sampling, vocab: int) -> None:
    drawing, sampler = DeviceSampler(vocab, 64, torch.device("cpu")), Sampler(sampling)
    limits = Limits(64, min_tokens=20, eos_ids=frozenset({3}), stop_ids=frozenset({5, 99_999}))
    drawing.take(sampling, limits, 0)
    drawing.number(sampler, 0, 64)
    logits = torch.randn(64, vocab, generator=torch.Generator().manual_seed(vocab)) * 3
    got, peaks = drawing.draw(drawing.way(sampling), logits, torch.arange(64))
    for index, row in enumerate(logits):
        want, peak = sampler.draw(row.clone(), index, masked=limits.stop_mask(index))
        assert (int(got[index]), float(peaks[index])) == (int(want), float(peak))


@pytest.mark.parametrize("way", [*PLAIN_WAYS, Way(Pick.RANKED, adjusts=True)])
def test_a_draw_in_a_chain_reads_nothing_back(way: Way) -> None:
    meta = torch.device("meta")
    drawing = DeviceSampler(64, 16, meta)
    index = torch.empty(4, dtype=torch.int64, device=meta)
    drafts = torch.empty(3, dtype=torch.int64, device=meta)
    drawn, peaks = drawing.draw(way, torch.empty(4, 64, device=meta), index, drafts=drafts)
    assert (drawn.device, drawn.shape, peaks.shape) == (meta, (4,), (4,))


def test_windows_double_up_to_all_positions() -> None:
    assert windows(48) == (48,)
    assert windows(512) == (512,)
    assert windows(3000) == (512, 1024, 2048, 3000)
    assert windows(40, least=16) == (16, 32, 40)


@pytest.mark.parametrize("sampling", [*SAMPLINGS, *ADJUSTED])
def test_recording_a_step_for_a_request_leaves_its_prompt_alone(
    made: Made, sampling: Sampling, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To be recorded a step is taken, which writes to the slot's cache."""

    def recorded(_queue: DeviceQueue, call: Callable[[], object]) -> Callable[[], object]:
        for _ in range(WARMING):
            call()
        return call

    limits = Limits(36)
    expected = answer(made.prefill, made.reference, PROMPT, limits, sampling)
    monkeypatch.setattr(DeviceQueue, "recorded", recorded)
    assert answer(made.prefill, made.engine(8), PROMPT, limits, sampling) == expected
