"""Chains that the device takes by itself, drafts verified there, give what the host gives."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.engine.glm.asking import Answer, decode, prefill
from tilert_engine.glm import GLMCheckpoint, GLMDecode, GLMPrefill
from tilert_engine.models.tiny_glm5 import TINY_GLM5, TINY_GLM5_NAME
from tilert_engine.torch.lanes import ChainOptions
from tilert_stream.events import Limits, Sampling, TokenLogprob

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
DEVICES = [
    pytest.param(("cpu", False), id="cpu"),
    pytest.param(("cuda", False), id="cuda", marks=needs_cuda),
    pytest.param(("cuda", True), id="graphs", marks=needs_cuda),
]
LONGEST = 256


class Made:
    def __init__(self, device: str, *, graphs: bool) -> None:
        self.checkpoint = GLMCheckpoint.load(
            TINY_GLM5, dtype=torch.float32, device=torch.device(device), name=TINY_GLM5_NAME
        )
        # Windows on both sides of the indexer's 64 best, and of the stored prompts' lengths.
        self.chains = ChainOptions(on_device=True, graphs=graphs, early=False, least_window=48)

    def engine(self, drafts: int, ar_steps: int = 8, *, ahead: bool = True) -> GLMDecode:
        return GLMDecode(
            self.checkpoint,
            slots=1,
            max_seq_len=LONGEST,
            drafts=drafts,
            ar_steps=ar_steps,
            chains=replace(self.chains, ahead=ahead),
        )


@pytest.fixture(scope="module", params=DEVICES)
def made(request: pytest.FixtureRequest) -> Made:
    device, graphs = request.param
    return Made(device, graphs=graphs)


def fp8(answers: list[Answer]) -> list[Answer]:
    return [answer for answer in answers if answer.cache == "fp8_ds_mla"]


@pytest.mark.parametrize(("drafts", "ar_steps"), [(0, 8), (1, 8), (3, 1), (3, 8), (3, 64)])
def test_stored_prompts_get_their_answers(
    made: Made, prefiller: GLMPrefill, answers: list[Answer], drafts: int, ar_steps: int
) -> None:
    engine = made.engine(drafts, ar_steps)
    for answer in (fp8(answers)[0], fp8(answers)[-1]):
        limits = Limits(len(answer.ids))
        output = prefill(prefiller, answer.prompt, limits)
        ids, finished = decode(engine, output.kv, output.first.ids[0], limits)
        answer.agrees(ids)
        assert finished.reason == "length"
        assert finished.account is not None
        assert finished.account["overrun"] == 0


def test_drafts_are_accepted_on_the_device(
    made: Made, prefiller: GLMPrefill, answers: list[Answer]
) -> None:
    answer = fp8(answers)[0]
    limits = Limits(len(answer.ids))
    output = prefill(prefiller, answer.prompt, limits)
    _, finished = decode(made.engine(3), output.kv, output.first.ids[0], limits)
    assert finished.account is not None
    mean = finished.account["mtp_accept_mean"]
    assert isinstance(mean, float)
    assert mean > 1.5


@pytest.mark.parametrize("ahead", [True, False], ids=["ahead", "serial"])
@pytest.mark.parametrize("drafts", [0, 3])
@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(seed=1),
        Sampling(0.7, top_p=0.9, seed=2),
        Sampling(1.2, top_k=20, seed=3),
        Sampling(seed=5, min_p=0.1),
        Sampling(
            0.7,
            seed=6,
            presence_penalty=0.8,
            frequency_penalty=0.4,
            repetition_penalty=1.4,
            prompt_tokens=frozenset(range(0, 2048, 2)),
            logit_bias=((100, 4.0), (101, 4.0), (5, -100.0)),
        ),
        Sampling(0.0, repetition_penalty=1.3, prompt_tokens=frozenset(range(1000))),
    ],
)
def test_a_seed_gives_the_hosts_answer(
    made: Made,
    checkpoint: GLMCheckpoint,
    prefiller: GLMPrefill,
    answers: list[Answer],
    sampling: Sampling,
    drafts: int,
    ahead: bool,
) -> None:
    """Whether drafts are verified or not: so sampling keeps the model's own distribution."""
    prompt = fp8(answers)[0].prompt
    limits = Limits(32, min_tokens=8, eos_ids=checkpoint.eos_ids)
    plain = GLMDecode(checkpoint, slots=1, max_seq_len=LONGEST, drafts=0)
    output = prefill(prefiller, prompt, limits, sampling)
    first = output.first.ids[0]
    expected = decode(plain, output.kv, first, limits, sampling)
    assert decode(made.engine(drafts, ahead=ahead), output.kv, first, limits, sampling) == expected


@pytest.mark.parametrize("drafts", [0, 3])
@pytest.mark.parametrize("on_device", [False, True], ids=["host", "device"])
def test_logprobs_and_penalties_do_not_depend_on_drafts(
    checkpoint: GLMCheckpoint,
    prefiller: GLMPrefill,
    answers: list[Answer],
    drafts: int,
    on_device: bool,
) -> None:
    prompt, limits = fp8(answers)[0].prompt, Limits(24)
    sampling = Sampling(0.8, seed=8, presence_penalty=0.5, repetition_penalty=1.2, logprobs=2)
    output = prefill(prefiller, prompt, limits, sampling)

    def told(engine: GLMDecode) -> tuple[list[int], list[TokenLogprob]]:
        sequence = engine.open(0, output.kv, output.first.ids[0], limits, sampling)
        ids: list[int] = []
        logprobs: list[TokenLogprob] = []
        finished = None
        while finished is None:
            harvest = engine.advance(sequence)
            finished = harvest.finished
            ids += harvest.batch.ids
            logprobs += harvest.batch.logprobs or ()
        engine.close(sequence)
        return ids, logprobs

    def made(drafts: int, *, on_device: bool) -> GLMDecode:
        chains = ChainOptions(on_device=on_device, early=False, least_window=48)
        return GLMDecode(
            checkpoint, slots=1, max_seq_len=LONGEST, drafts=drafts, ar_steps=4, chains=chains
        )

    ids, logprobs = told(made(drafts, on_device=on_device))
    expected, right = told(made(0, on_device=False))
    assert ids == expected
    assert [entry.token_id for entry in logprobs] == ids
    for entry, other in zip(logprobs, right, strict=True):
        assert entry.logprob == pytest.approx(other.logprob, abs=1e-4)
        assert [value for _, value in entry.top] == pytest.approx(
            [value for _, value in other.top], abs=1e-4
        )


@pytest.mark.parametrize("drafts", [0, 3])
def test_a_sequence_that_is_given_up_leaves_nothing_behind(
    made: Made, prefiller: GLMPrefill, answers: list[Answer], drafts: int
) -> None:
    """Its chain that was enqueued ahead runs to its end; the next request takes the same slot."""
    answer, engine = fp8(answers)[0], made.engine(drafts)
    limits = Limits(len(answer.ids))
    output = prefill(prefiller, answer.prompt, limits)
    given_up = engine.open(0, output.kv, answer.ids[0], limits, Sampling(seed=9))
    assert engine.advance(given_up).finished is None
    engine.close(given_up)
    ids, _ = decode(engine, output.kv, answer.ids[0], limits)
    answer.agrees(ids)


def test_a_stop_inside_a_chain_ends_the_answer_there(
    made: Made, prefiller: GLMPrefill, answers: list[Answer]
) -> None:
    answer = fp8(answers)[0]
    stop = answer.ids[11]
    ends = answer.ids.index(stop) + 1
    limits = Limits(len(answer.ids), stop_ids=frozenset({stop}))
    output = prefill(prefiller, answer.prompt, limits)
    for drafts in (0, 3):
        ids, finished = decode(made.engine(drafts), output.kv, answer.ids[0], limits)
        assert ids == answer.ids[:ends]
        assert (finished.reason, finished.stop_reason) == ("stop", stop)


def test_many_seeds_are_drawn_alike(
    made: Made, checkpoint: GLMCheckpoint, prefiller: GLMPrefill, answers: list[Answer]
) -> None:
    answer, limits = fp8(answers)[0], Limits(3)
    kv = prefill(prefiller, answer.prompt, limits).kv
    plain = GLMDecode(checkpoint, slots=1, max_seq_len=LONGEST, drafts=0)
    engine, said = made.engine(3), set[tuple[int, ...]]()
    for seed in range(60):
        sampling = Sampling(2.0, seed=seed)
        want, _ = decode(plain, kv, answer.ids[0], limits, sampling)
        got, _ = decode(engine, kv, answer.ids[0], limits, sampling)
        assert got == want
        said.add(tuple(got))
    assert len(said) > 10
