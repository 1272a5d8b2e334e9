"""Clients that leave, and engines that fail, in the whole app."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
import pytest

from tests.cases.asking import LIMIT, ByteApp, Said, ask, exchange
from tilert_engine.scripted import Script
from tilert_stream.errors import EngineFault
from tilert_stream.testing import Gate

both = pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])


async def test_dis_01_the_engine_stops_when_the_client_leaves() -> None:
    """After 5 of 2,000 tokens; INV-2."""
    turns: list[int] = []
    with Gate() as gate:

        def before_chain(turn: int) -> None:
            turns.append(turn)
            if turn == 4:
                gate.pass_through(turn)

        app = ByteApp(Script(before_chain=before_chain))
        asked = exchange(app, {"max_tokens": 2000}, stream=True)
        async with app.lifespan():
            async with asked.running(gate):
                await asked.until("abcab")
                await gate.arrival()
                asked.leave()
            assert app.service.ledger.counts == {}
            gate.open()
            assert await ask(app, {"max_tokens": 2}, stream=True) == Said("ab", "length", 2)
    assert turns == [0, 1, 2, 3, 4, 0], "no chain after the one it was in"
    assert app.decode_engine.busy == {}


class Held:
    """A request whose engine stands still in decode; then what it held has to be back."""

    def __init__(self, gate: Gate, *, stream: bool) -> None:
        self.gate = gate
        self.app = ByteApp(Script(before_chain=gate.pass_through))
        self.asked = exchange(self.app, {"max_tokens": 2000}, stream=stream)

    @asynccontextmanager
    async def cancelled_in_the_block(self) -> AsyncGenerator[None]:
        async with self.app.lifespan():
            with anyio.fail_after(LIMIT):
                yield
            assert self.app.service.ledger.counts == {}
            self.gate.open()
            assert await ask(self.app, {"max_tokens": 2}, stream=True) == Said("ab", "length", 2)
        assert self.app.decode_engine.busy == {}


@both
async def test_dis_06_what_is_held_goes_back_from_a_cancelled_scope(stream: bool) -> None:
    with Gate() as gate:
        held = Held(gate, stream=stream)
        async with held.cancelled_in_the_block(), anyio.create_task_group() as tasks:
            tasks.start_soon(held.asked.run)
            await gate.arrival()
            tasks.cancel_scope.cancel()


@both
@pytest.mark.parametrize(
    "anyio_backend",
    [("asyncio", {"use_uvloop": False}), ("asyncio", {"use_uvloop": True})],
    ids=["asyncio", "uvloop"],
)
async def test_dis_06_what_is_held_goes_back_from_a_cancelled_task(stream: bool) -> None:
    """Cancelled twice: the second pierces an anyio shield, hence nothing of it awaits."""
    with Gate() as gate:
        held = Held(gate, stream=stream)
        async with held.cancelled_in_the_block():
            task = asyncio.create_task(held.asked.run())
            await gate.arrival()
            task.cancel()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task


@pytest.mark.parametrize("tokens", [0, 1, 5])
@both
async def test_err_01_an_engine_that_fails_in_the_middle(tokens: int, stream: bool) -> None:
    with Gate() as gate:

        def fails_at(number: int) -> None:
            if number == tokens - 1:
                gate.pass_through(number)
                raise EngineFault("by script")

        app = ByteApp(
            Script(before_chunk=lambda _: fails_at(-1), before_chain=fails_at)
            if tokens == 0
            else Script(before_chain=fails_at)
        )
        asked = exchange(app, {"max_tokens": 2000}, stream=stream)
        async with app.lifespan(), asked.running(gate):
            await gate.arrival()
            if stream and tokens:
                await asked.until("abcab"[:tokens])
            gate.open()
    assert b'"finish_reason":"' not in asked.content
    assert b'"usage"' not in asked.content
    assert b"[DONE]" not in asked.content
    if stream and tokens:
        assert (asked.status, asked.complete) == (200, False), "begun, and cut"
        assert asked.text == "abcab"[:tokens]
        assert sorted(asked.chunks[-1]["error"]) == ["code", "message", "param", "type"]
    else:
        assert (asked.status, asked.complete) == (500, True), "a real status"
        assert asked.json["error"]["code"] == "engine_fault"


@both
async def test_err_02_a_fault_is_neither_length_nor_stop(stream: bool) -> None:
    """Although the last token that was asked for is the one that fails."""

    def third(turn: int) -> None:
        if turn == 1:
            raise EngineFault("by script")

    app = ByteApp(Script(before_chain=third))
    asked = exchange(app, {"max_tokens": 3}, stream=stream)
    async with app.lifespan():
        await asked.run()
    assert b'"finish_reason":"' not in asked.content
    assert b'"engine_fault"' in asked.content


@both
async def test_err_05_a_refusal_is_a_status(stream: bool) -> None:
    """400 and 429: nothing of a stream has left when they are known."""
    with Gate() as gate:
        app = ByteApp(Script(before_chunk=gate.pass_through), queue_timeout=0)
        first = exchange(app, {"max_tokens": 1})
        async with app.lifespan(), first.running(gate):
            await gate.arrival()
            for fields, status in (({}, 429), ({"max_tokens": 10_000}, 400)):
                refused = exchange(app, fields, stream=stream)
                await refused.run()
                assert (refused.status, refused.complete) == (status, True)
                assert refused.json["error"]["code"]
            gate.open()
    assert first.status == 200


async def test_err_05_a_dead_engine_is_503() -> None:
    def die(_chunk: int) -> None:
        raise RuntimeError("device lost")

    app = ByteApp(Script(before_chunk=die))
    async with app.lifespan():
        for _ in range(2):
            asked = exchange(app, {}, stream=True)
            await asked.run()
            assert (asked.status, asked.json["error"]["code"]) == (503, "engine_died")


@both
async def test_err_09_clients_cannot_break_the_server(stream: bool) -> None:
    """20 prompts too long, 20 that leave: the next one is served, and the server is ready."""
    app = ByteApp(max_seq_len=64)
    async with app.lifespan():
        for number in range(20):
            long = exchange(app, {"prompt": "x" * 100}, stream=stream)
            await long.run()
            assert long.status == 400
            gone = exchange(app, {"max_tokens": 60}, stream=stream)
            async with gone.running():
                for _ in range(number):
                    await anyio.lowlevel.checkpoint()
                gone.leave()
        assert app.service.ready
        assert await ask(app, {"max_tokens": 2}, stream=stream) == Said("ab", "length", 2)
