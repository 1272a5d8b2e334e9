from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import anyio
import pytest

from tilert_engine.prefill_worker import PrefillJob, PrefillWorker
from tilert_engine.scripted import Script, ScriptedPrefill
from tilert_stream.abc import PrefillResult
from tilert_stream.errors import EngineDied, EngineFault
from tilert_stream.events import Limits, PromptUsage, Sampling, TokenBatch
from tilert_stream.testing import Gate


class Run:
    """A prompt of as many chunks as it has tokens."""

    def __init__(self, prompt_ids: Sequence[int]) -> None:
        self.prompt_ids = tuple(prompt_ids)
        self.chunk = 0


class Result:
    def __init__(self, run: Run) -> None:
        self.first = TokenBatch((run.prompt_ids[0],))
        self.kv: object = run.prompt_ids
        self.usage = PromptUsage(len(run.prompt_ids))


class Engine:
    """Writes down what is called; fails on token 0, dies on token -1."""

    max_seq_len = 4096

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.log: list[tuple[str, int]] = []

    def open(self, prompt_ids: Sequence[int], _limits: Limits, _sampling: Sampling) -> Run:
        self.log.append(("open", prompt_ids[0]))
        return Run(prompt_ids)

    def advance(self, run: Run) -> Result | None:
        name = run.prompt_ids[0]
        self.log.append(("chunk", name))
        self.gate.pass_through(name)
        if run.prompt_ids[run.chunk] == 0:
            raise EngineFault("a bad page")
        if run.prompt_ids[run.chunk] == -1:
            raise RuntimeError("device lost")
        run.chunk += 1
        return Result(run) if run.chunk == len(run.prompt_ids) else None

    def close(self, run: Run) -> None:
        self.log.append(("close", run.prompt_ids[0]))


class Prefill:
    def __init__(self, gate: Gate) -> None:
        self.engine = Engine(gate)
        self.worker = PrefillWorker(self.engine)
        self.deaths: list[EngineDied] = []

    def submit(self, *prompt_ids: int) -> PrefillJob[Run]:
        return self.worker.submit(prompt_ids, Limits(5), Sampling())

    def called(self, what: str) -> list[int]:
        return [name for call, name in self.engine.log if call == what]


@asynccontextmanager
async def running() -> AsyncGenerator[tuple[Prefill, Gate]]:
    """Held at the first chunk until the gate is opened."""
    with Gate() as gate:
        prefill = Prefill(gate)
        prefill.worker.start(prefill.deaths.append)
        try:
            yield prefill, gate
        finally:
            gate.open()
            await anyio.to_thread.run_sync(prefill.worker.stop)
    assert sorted(prefill.called("open")) == sorted(prefill.called("close"))


async def test_short_prompts_pass_long_ones() -> None:
    async with running() as (prefill, gate):
        long, short = prefill.submit(1, 1, 1, 1), prefill.submit(2)
        await gate.arrival()
        gate.open()
        results = [await long.computed.wait(), await short.computed.wait()]
        assert [result.usage for result in results] == [PromptUsage(4), PromptUsage(1)]
        assert [result.kv for result in results] == [(1, 1, 1, 1), (2,)]
        await prefill.worker.settled()
        assert prefill.called("chunk") == [1, 2, 1, 1, 1]
        assert prefill.called("close") == [2, 1]


async def test_a_prompt_is_given_up_between_chunks() -> None:
    async with running() as (prefill, gate):
        job = prefill.submit(1, 1, 1)
        await gate.arrival()
        prefill.worker.close(job)
        prefill.worker.close(job)
        gate.open()
        await prefill.worker.settled()
        assert prefill.called("chunk") == [1]
        assert not job.computed.done


async def test_a_fault_ends_one_prompt() -> None:
    async with running() as (prefill, gate):
        bad, good = prefill.submit(3, 0, 3), prefill.submit(4, 4)
        gate.open()
        with pytest.raises(EngineFault, match="a bad page"):
            await bad.computed.wait()
        assert (await good.computed.wait()).first == TokenBatch((4,))
        assert prefill.deaths == []


async def test_a_death_ends_all_and_those_that_come_later() -> None:
    async with running() as (prefill, gate):
        bad, other = prefill.submit(3, -1), prefill.submit(4, 4, 4)
        await gate.arrival()
        gate.open()
        for job in (bad, other):
            with pytest.raises(EngineDied) as caught:
                await job.computed.wait()
            assert [caught.value] == prefill.deaths
        with pytest.raises(EngineDied):
            await prefill.submit(5).computed.wait()
        assert 5 not in prefill.called("open")


async def test_a_result_that_is_there_stays_when_the_engine_stops() -> None:
    async with running() as (prefill, gate):
        done, running_still = prefill.submit(1), prefill.submit(2, 2)
        gate.open()
        await done.computed.wait()
        await anyio.to_thread.run_sync(prefill.worker.stop)
        assert done.computed.value.first == TokenBatch((1,))
        assert running_still.computed.done
        late = prefill.submit(3)
        with pytest.raises(EngineDied, match="stopped"):
            await late.computed.wait()


def test_the_scripted_engine_keeps_the_contract() -> None:
    engine = ScriptedPrefill(Script(chunks=3))
    run = engine.open((7, 8), Limits(5), Sampling())
    results: list[PrefillResult | None] = [engine.advance(run) for _ in range(3)]
    assert results[:2] == [None, None]
    assert results[2] is not None
    assert results[2].first == TokenBatch((7,))
    assert results[2].usage == PromptUsage(2)
    engine.close(run)
