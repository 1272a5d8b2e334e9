"""A request from prompt to end through both engines, and the prompts that are stored."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilert_stream.abc import DecodeEngine, PrefillEngine, PrefillResult
from tilert_stream.events import Finished, Limits, Sampling

GREEDY = Sampling(temperature=0)
STORED = Path(__file__).parent / "greedy.json"


@dataclass(frozen=True)
class Answer:
    """What the model says greedily, and how far each token's logit is above the next best."""

    cache: str
    """The latent cache's dtype; empty where there is none."""
    prompt: list[int]
    ids: list[int]
    margins: list[float]

    def agrees(self, ids: Sequence[int], *, least: float = 1e-3) -> None:
        """``ids`` are the answer's, up to a near-tie at most, at which another may be taken."""
        for place, (got, want) in enumerate(zip(ids, self.ids, strict=True)):
            if got != want:
                assert self.margins[place] <= least, f"token {place} is {got}, not {want}"
                return


def stored() -> list[Answer]:
    return [Answer(**answer) for answer in json.loads(STORED.read_text())]


def prefill(
    engine: PrefillEngine[Any], prompt: Sequence[int], limits: Limits, sampling: Sampling = GREEDY
) -> PrefillResult:
    run = engine.open(prompt, limits, sampling)
    while (output := engine.advance(run)) is None:
        pass
    engine.close(run)
    return output


def decode(
    engine: DecodeEngine[Any],
    kv: object,
    first: int,
    limits: Limits,
    sampling: Sampling = GREEDY,
    *,
    slot: int = 0,
) -> tuple[list[int], Finished]:
    """The whole answer, the first token included."""
    sequence = engine.open(slot, kv, first, limits, sampling)
    ids, finished = [first], None
    while finished is None:
        harvest = engine.advance(sequence)
        ids += harvest.batch.ids
        finished = harvest.finished
    engine.close(sequence)
    return ids, finished
