"""A prompt's log-probabilities, against the float64 reference, however it is cut into chunks."""

from __future__ import annotations

import pytest
import torch

from tests.engine.torch.answer import GREEDY
from tests.engine.torch.tiny import Tiny, reference_logits
from tilert_engine.torch import Checkpoint, TorchPrefill
from tilert_engine.torch.prompt_scores import PLACES, PromptScores
from tilert_stream.events import Limits, Sampling, TokenLogprob

PROMPT = [72, 101, 108, 108, 111, 44, 220, 7, 3, 99, 250, 0, 17]


def told(
    checkpoint: Checkpoint, prompt: list[int], count: int | None, chunk: int
) -> tuple[TokenLogprob, ...] | None:
    engine = TorchPrefill(checkpoint, max_seq_len=64, chunk=chunk)
    sampling = Sampling(temperature=GREEDY.temperature, prompt_logprobs=count)
    run = engine.open(prompt, Limits(1), sampling)
    output = None
    while output is None:
        output = engine.advance(run)
    return output.usage.logprobs


@pytest.mark.parametrize("chunk", [1, 5, 12, 13, 256])
def test_each_token_but_the_first_is_told(tiny: Tiny, checkpoint: Checkpoint, chunk: int) -> None:
    scores = told(checkpoint, PROMPT, 2, chunk)
    assert scores is not None
    assert [score.token_id for score in scores] == PROMPT[1:]
    for place, score in enumerate(scores, 1):
        expected = reference_logits(tiny, PROMPT[:place]).log_softmax(-1)
        assert score.logprob == pytest.approx(float(expected[PROMPT[place]]), abs=1e-3)
        likely = expected.topk(2).indices
        assert [token for token, _ in score.top] == [int(token) for token in likely]
        for token, logprob in score.top:
            assert logprob == pytest.approx(float(expected[token]), abs=1e-3)


def test_a_prompt_of_one_token_has_none_and_who_does_not_ask_gets_none(
    checkpoint: Checkpoint,
) -> None:
    assert told(checkpoint, [7], 0, 256) == ()
    assert told(checkpoint, PROMPT, None, 256) is None


def test_no_more_places_at_a_time_than_memory_allows() -> None:
    prompt = tuple(range(2 * PLACES + 2))
    taken: list[int] = []

    def logits(hidden: torch.Tensor) -> torch.Tensor:
        taken.append(hidden.shape[0])
        return torch.zeros(hidden.shape[0], len(prompt))

    scores = PromptScores(prompt, 0)
    scores.take(logits, torch.zeros(len(prompt), 4), 0)
    assert taken == [PLACES, PLACES, 1]
    assert [score.token_id for score in scores.told or ()] == list(prompt[1:])
