from __future__ import annotations

import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from tilert_engine.decode_worker import DecodeJob, DecodeWorker
from tilert_engine.scripted import Script, ScriptedDecode, ScriptedKV
from tilert_stream.errors import EngineDied, EngineFault
from tilert_stream.events import Finished, Limits, Sampling, TokenBatch
from tilert_stream.mailbox import Mailbox
from tilert_stream.testing import Gate

PROMPT = tuple(b"abc")


class Decode:
    """A worker on the scripted engine; the slots that came free, in order."""

    def __init__(self, script: Script, *, slots: int = 2) -> None:
        self.engine = ScriptedDecode(script, slots=slots)
        self.worker = DecodeWorker(self.engine)
        self.freed: list[int] = []
        self.deaths: list[EngineDied] = []

    def open(self, slot: int = 0, *, tokens: int = 5, kv: object = None) -> DecodeJob[Any]:
        cache = ScriptedKV(PROMPT) if kv is None else kv
        limits = Limits(tokens)
        return self.worker.open(
            slot, cache, PROMPT[0], limits, Sampling(), on_closed=lambda: self.freed.append(slot)
        )

    def begin(self, job: DecodeJob[Any]) -> Mailbox[TokenBatch]:
        mailbox: Mailbox[TokenBatch] = Mailbox()
        self.worker.begin(job, mailbox)
        return mailbox


@asynccontextmanager
async def running(script: Script | None = None) -> AsyncGenerator[Decode]:
    before = set(threading.enumerate())
    decode = Decode(script or Script())
    decode.worker.start(decode.deaths.append)
    try:
        yield decode
    finally:
        await anyio.to_thread.run_sync(decode.worker.stop)
    assert decode.engine.busy == {}
    owners = {t for t in threading.enumerate() if t.name.startswith("tilert-")}
    assert owners <= before


async def read(mailbox: Mailbox[TokenBatch]) -> tuple[str, Finished]:
    """The tokens as text, and the end."""
    ids: list[int] = []
    while True:
        await mailbox.wait()
        for item in mailbox.drain():
            if isinstance(item, Finished):
                return bytes(ids).decode(), item
            ids += item.ids


async def test_a_sequence_from_its_cache_to_its_end() -> None:
    async with running(Script(chain=lambda _turn: 3)) as decode:
        job = decode.open(tokens=6)
        await job.opened.wait()
        assert list(decode.engine.busy) == [0]
        assert await read(decode.begin(job)) == ("bcabc", Finished("length"))
        await decode.worker.settled()
        assert decode.freed == [0]


async def test_the_end_comes_in_the_wake_of_the_last_tokens() -> None:
    with Gate() as gate:
        async with running(Script(chain=lambda _turn: 5, before_chain=gate.pass_through)) as decode:
            mailbox = decode.begin(decode.open(tokens=5))
            await gate.arrival()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(mailbox.wait)
                await anyio.wait_all_tasks_blocked()
                gate.open()
            assert mailbox.drain() == [TokenBatch(tuple(b"bcab")), Finished("length")]
            assert mailbox.statistics().wakes == 1


async def test_the_end_is_told_before_the_slot_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the device takes to free it."""
    with Gate() as gate:
        async with running() as decode:
            close = decode.engine.close

            def closing(sequence: Any) -> None:
                gate.pass_through(sequence.slot)
                close(sequence)

            monkeypatch.setattr(decode.engine, "close", closing)
            told = await read(decode.begin(decode.open(tokens=3)))
            assert told == ("bc", Finished("length"))
            await gate.arrival()
            assert list(decode.engine.busy) == [0]
            gate.open()
            await decode.worker.settled()
            assert decode.freed == [0]


async def test_nothing_flows_before_the_begin() -> None:
    async with running() as decode:
        job = decode.open()
        await job.opened.wait()
        await decode.worker.settled()
        assert list(decode.engine.busy) == [0]
        assert (await read(decode.begin(job)))[0] == "bcab"


async def test_a_close_comes_before_the_next_chain() -> None:
    turns: list[int] = []
    with Gate() as gate:

        def note(turn: int) -> None:
            turns.append(turn)
            gate.pass_through(turn)

        async with running(Script(before_chain=note)) as decode:
            job = decode.open(tokens=4000)
            mailbox = decode.begin(job)
            await gate.arrival()
            decode.worker.close(job)
            decode.worker.close(job)
            gate.open()
            await decode.worker.settled()
            assert turns == [0]
            assert decode.freed == [0]
            assert decode.engine.busy == {}
            assert mailbox.drain() == [TokenBatch((98,))]


async def test_a_reader_that_has_left_ends_its_sequence() -> None:
    async with running() as decode:
        left = decode.begin(decode.open(0, tokens=4000))
        left.close()
        assert (await read(decode.begin(decode.open(1, tokens=50))))[1] == Finished("length")
        await decode.worker.settled()
        assert decode.freed[0] == 0
        assert decode.engine.busy == {}


async def test_a_slot_can_be_opened_right_after_its_close() -> None:
    async with running() as decode:
        old = decode.open(0, tokens=4000)
        decode.begin(old)
        decode.worker.close(old)
        new = decode.open(0)
        assert await read(decode.begin(new)) == ("bcab", Finished("length"))
        await decode.worker.settled()
        assert decode.freed == [0, 0]
        assert decode.deaths == []


async def test_an_import_that_fails_is_told_where_the_request_waits() -> None:
    async with running() as decode:
        job = decode.open(0, kv="no cache")
        with pytest.raises(EngineFault, match="takes ScriptedKV, not str"):
            await job.opened.wait()
        await decode.worker.settled()
        assert decode.freed == [0]
        other = decode.open(1)
        assert (await read(decode.begin(other)))[1] == Finished("length")


async def test_a_begin_after_the_failure_delivers_it() -> None:
    async with running() as decode:
        job = decode.open(0, kv="no cache")
        await decode.worker.settled()
        text, end = await read(decode.begin(job))
        assert text == ""
        assert isinstance(end.error, EngineFault)
        assert decode.freed == [0]


async def test_a_fault_in_a_chain_ends_that_sequence_only() -> None:
    faults = [EngineFault("a bad page")]

    def fail_once(turn: int) -> None:
        if turn == 1 and faults:
            raise faults.pop()

    async with running(Script(before_chain=fail_once)) as decode:
        first, second = decode.open(0, tokens=9), decode.open(1, tokens=9)
        mailboxes = [decode.begin(first), decode.begin(second)]
        ends = [await read(mailbox) for mailbox in mailboxes]
        assert sorted(text for text, _ in ends) == ["b", "bcabcabc"]
        assert {end.reason for _, end in ends} == {"error", "length"}
        await decode.worker.settled()
        assert sorted(decode.freed) == [0, 1]
        assert decode.deaths == []


async def test_a_death_is_told_to_all_wherever_they_wait() -> None:
    with Gate() as gate:

        def die(turn: int) -> None:
            gate.pass_through(turn)
            raise RuntimeError("device lost")

        async with running(Script(before_chain=die)) as decode:
            opened = decode.open(1)
            mailbox = decode.begin(decode.open(0))
            await gate.arrival()
            waiting = decode.open(5)
            gate.open()
            ends = [await read(mailbox), await read(decode.begin(opened))]
            with pytest.raises(EngineDied):
                await waiting.opened.wait()
            late = decode.open(6)
            with pytest.raises(EngineDied):
                await late.opened.wait()
            await decode.worker.settled()
            [death] = decode.deaths
            assert [end.error for _, end in ends] == [death, death]
            assert sorted(decode.freed) == [0, 1, 5, 6]


async def test_stop_tells_who_still_waits() -> None:
    async with running() as decode:
        job = decode.open()
        await job.opened.wait()
        await anyio.to_thread.run_sync(decode.worker.stop)
        _, end = await read(decode.begin(job))
        assert isinstance(end.error, EngineDied)
        assert decode.freed == [0]


async def test_the_handed_over_cache_does_not_live_as_long_as_the_answer() -> None:
    import gc
    import weakref

    class Cache(ScriptedKV):
        __slots__ = ("__weakref__",)

    async with running() as decode:
        cache = Cache(PROMPT)
        alive = weakref.ref(cache)
        job = decode.open(kv=cache)
        del cache
        await job.opened.wait()
        gc.collect()
        assert alive() is None
