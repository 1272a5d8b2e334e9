"""A request from prompt to end through both engines, as the workers run it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilert_stream.events import Finished, Limits, Sampling

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tilert_engine.torch import PrefillOutput, TorchDecode, TorchPrefill

GREEDY = Sampling(temperature=0)


def prefill(
    engine: TorchPrefill, prompt: Sequence[int], limits: Limits, sampling: Sampling = GREEDY
) -> PrefillOutput:
    run = engine.open(prompt, limits, sampling)
    while (output := engine.advance(run)) is None:
        pass
    engine.close(run)
    return output


def answer(
    prefill_engine: TorchPrefill,
    decode_engine: TorchDecode,
    prompt: Sequence[int],
    limits: Limits,
    sampling: Sampling = GREEDY,
    *,
    slot: int = 0,
) -> tuple[list[int], Finished]:
    output = prefill(prefill_engine, prompt, limits, sampling)
    ids = list(output.first.ids)
    _, finished = limits.cut(ids, 0)
    if finished is not None:
        assert output.first.ends_with_stop == (finished.reason == "stop")
        return ids, finished
    sequence = decode_engine.open(slot, output.kv, ids[0], limits, sampling)
    while finished is None:
        harvest = decode_engine.advance(sequence)
        finished = harvest.finished
        ids += harvest.batch.ids
        stopped = finished is not None and finished.reason == "stop"
        assert harvest.batch.ends_with_stop == stopped
    decode_engine.close(sequence)
    return ids, finished
