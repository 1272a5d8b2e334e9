"""The benchmarks of a GPU, small and on a CPU: what they measure is what they say."""

from __future__ import annotations

import gc

import anyio
import pytest

from bench.gpu.cluster import Answer, running
from bench.gpu.kv_import import main as measure_import
from bench.gpu.model import HOST, random_checkpoint
from bench.gpu.synthetic import TimedDecode
from tilert_engine.glm import GLMDecode

LONGEST = 128
PREFILL_SECONDS = 0.02


def test_a_request_is_measured_from_end_to_end() -> None:
    checkpoint = random_checkpoint(1, positions=LONGEST, device=HOST, small=True)
    engine = TimedDecode(GLMDecode(checkpoint, slots=1, max_seq_len=LONGEST, drafts=0, ar_steps=4))

    async def measure() -> tuple[list[Answer], float]:
        async with running(checkpoint, engine, PREFILL_SECONDS) as cluster:
            assert gc.get_freeze_count() > 0, "a collection would hold the decode node up"
            answers = [await cluster.ask(40, 12) for _ in range(2)]
            return answers, await cluster.ask_prefill(40)

    answers, direct = anyio.run(measure)
    assert gc.get_freeze_count() == 0
    for answer in answers:
        begun, computed = answer.computed
        assert computed - begun >= PREFILL_SECONDS * 1e9
        # The first token is at the client before the first chain has been read.
        assert answer.asked < begun < computed < answer.first < answer.moments[0]
        assert answer.moments == sorted(answer.moments)
        assert answer.moments[-1] < answer.done
        assert (len(answer.moments), answer.steps, answer.overrun) == (3, [4, 8, 11], 0)
    assert direct >= PREFILL_SECONDS * 1e3


def test_an_import_is_measured_by_its_parts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ("--tokens", "100", "--room", "128", "--layers", "2", "--rounds", "3")
    monkeypatch.setattr("sys.argv", ["kv_import", "--device", "cpu", *sizes])
    measure_import()
    said = capsys.readouterr().out
    for part in ("bare", "import", "copies", "by layer", "computing", "share"):
        assert f"{part} " in said
    assert "gives what it gives on the host" in said
