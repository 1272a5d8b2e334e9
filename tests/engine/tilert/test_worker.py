"""The engine under its owner thread: streams, a client that leaves, a device that dies."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import anyio
import pytest

from tests.engine.tilert.driving import FAMILIES, GREEDY, Family, engine_on, expected
from tilert_engine.decode_worker import DecodeJob, DecodeWorker
from tilert_engine.tilert.decode import TileRTDecode, TileRTSequence
from tilert_stream.errors import EngineDied, EngineFault
from tilert_stream.events import Finished, Limits, Sampling, TokenBatch
from tilert_stream.mailbox import Mailbox
from tilert_stream.testing import Gate
from tilert_stream.testing.tilert_fake import FakeGenerator, FakeModel

MODEL = FakeModel(token=lambda index: 100 + index, accepts=lambda step: 1 + step % 4)
families = pytest.mark.parametrize("family", FAMILIES, ids=str)


@dataclass
class Serving:
    worker: DecodeWorker[TileRTSequence]
    engine: TileRTDecode
    fake: FakeGenerator
    deaths: list[EngineDied] = field(default_factory=list[EngineDied])
    freed: int = 0

    def open(self, limits: Limits, sampling: Sampling = GREEDY) -> DecodeJob[TileRTSequence]:
        return self.worker.open(
            0, self.fake.kv(tokens=5), 100, limits, sampling, on_closed=self.free
        )

    def free(self) -> None:
        self.freed += 1

    def begin(self, job: DecodeJob[TileRTSequence]) -> Mailbox[TokenBatch]:
        mailbox: Mailbox[TokenBatch] = Mailbox()
        self.worker.begin(job, mailbox)
        return mailbox


@asynccontextmanager
async def serving(model: FakeModel, family: Family) -> AsyncGenerator[Serving]:
    engine, fake = engine_on(model, family, ar_steps=4)
    served = Serving(DecodeWorker(engine), engine, fake)
    served.worker.start(served.deaths.append)
    try:
        yield served
    finally:
        await anyio.to_thread.run_sync(served.worker.stop)


async def read(mailbox: Mailbox[TokenBatch]) -> tuple[list[int], Finished]:
    ids: list[int] = []
    while True:
        await mailbox.wait()
        for item in mailbox.drain():
            if isinstance(item, Finished):
                return ids, item
            ids += item.ids


@families
async def test_several_requests_one_after_another(family: Family) -> None:
    stop = frozenset({MODEL.token(7)})
    async with serving(MODEL, family) as served:
        for limits in (Limits(30), Limits(30, eos_ids=stop), Limits(2), Limits(30)):
            job = served.open(limits)
            await job.opened.wait()
            ids, finished = await read(served.begin(job))
            assert (ids, finished.reason) == expected(MODEL, limits)
            await served.worker.settled()
            assert served.fake.device.sequence is None
        assert served.freed == 4
    assert served.deaths == []


@families
async def test_dis_01_a_request_given_up_between_chains(family: Family) -> None:
    with Gate() as gate:

        def held(index: int) -> int:
            if index == 12:
                gate.pass_through(index)
            return MODEL.token(index)

        async with serving(replace(MODEL, token=held), family) as served:
            job = served.open(Limits(200))
            await job.opened.wait()
            served.begin(job)
            await gate.arrival()
            served.worker.close(job)
            gate.open()
            await served.worker.settled()
            assert served.freed == 1
            assert served.fake.device.sequence is None
            assert served.fake.device.forwards < 20, "the present chain, and no further one"
            again = served.open(Limits(5))
            assert (await read(served.begin(again)))[0] == [101, 102, 103, 104]


@families
async def test_a_refused_request_leaves_the_engine_to_the_next(family: Family) -> None:
    async with serving(MODEL, family) as served:
        refused = served.open(Limits(5), Sampling(min_p=0.5))
        with pytest.raises(EngineFault, match="min_p"):
            await refused.opened.wait()
        job = served.open(Limits(3))
        assert (await read(served.begin(job)))[0] == [101, 102]
        await served.worker.settled()
        assert (served.freed, served.deaths) == (2, [])


@families
async def test_err_01_a_device_that_dies_ends_its_request_with_an_error(
    family: Family, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(replace(MODEL, dies_at=9), family) as served:
        job = served.open(Limits(60))
        ids, finished = await read(served.begin(job))
        assert ids == [MODEL.token(index) for index in range(1, len(ids) + 1)]
        assert isinstance(finished.error, EngineDied)
        await served.worker.settled()
        later = served.open(Limits(3))
        with pytest.raises(EngineDied):
            await later.opened.wait()
        await served.worker.settled()
        assert len(served.deaths) == 1
        assert served.freed == 2
    assert "CUDA error" in caplog.text
