"""A service on the scripted engine, without HTTP: counts, and what comes back from where."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

import anyio
import pytest

from tilert_engine.scripted import Script, ScriptedDecode, ScriptedPrefill
from tilert_stream.abc import Step
from tilert_stream.errors import (
    Busy,
    ContextLengthExceeded,
    EngineDied,
    EngineFault,
    NotReady,
    TilertStreamError,
)
from tilert_stream.events import Finished, GenerateRequest, Limits, TextDelta
from tilert_stream.model.byte_tokenizer import EOS, byte_tokenizer
from tilert_stream.nodes.local import local_service
from tilert_stream.scope import RequestScope
from tilert_stream.service import Service
from tilert_stream.testing import Gate

PROMPT = tuple(b"abc")


def make(limits: Limits | int = 5, **fields: Any) -> GenerateRequest:
    limits = Limits(limits, eos_ids=frozenset({EOS})) if isinstance(limits, int) else limits
    return GenerateRequest("feed", PROMPT, limits, **fields)


class Plain:
    """An encoder that keeps what it is told."""

    def __init__(self, _scope: RequestScope) -> None: ...

    def feed(self, item: TextDelta) -> Sequence[TextDelta]:
        return (item,)

    def finish(self, _outcome: Finished) -> Sequence[TextDelta]:
        return ()


class Node:
    """Two scripted engines, and the service on them."""

    def __init__(
        self, script: Script, *, slots: int = 1, max_seq_len: int = 4096, **options: Any
    ) -> None:
        self.decode = ScriptedDecode(script, slots=slots, max_seq_len=max_seq_len)
        self.service: Service[TextDelta] = local_service(
            ScriptedPrefill(script), self.decode, byte_tokenizer(), **options
        )

    async def answer(self, request: GenerateRequest) -> tuple[str, int, Finished]:
        """The text, the number of tokens, and the end."""
        deltas: list[TextDelta] = []
        async with self.service.open(request, Plain) as stream:
            async for some in stream:
                deltas += some
        assert stream.outcome is not None
        text = "".join(delta.text for delta in deltas)
        return text, sum(len(delta.ids) for delta in deltas), stream.outcome

    async def assert_everything_is_back(self) -> None:
        """INV-2: and the slots serve the next."""
        assert self.service.ledger.counts == {}
        assert await self.answer(make(3)) == ("abc", 3, Finished("length"))
        assert self.service.ledger.counts == {}


@asynccontextmanager
async def running(script: Script, **options: Any) -> AsyncGenerator[Node]:
    """Leaving stops the engines' threads, so that what they left behind can be looked at."""
    node = Node(script, **options)
    async with node.service:
        yield node
        await node.assert_everything_is_back()
    assert node.decode.busy == {}


@pytest.mark.parametrize("n", [1, 2, 3, 16])
@pytest.mark.parametrize("size", [1, 4])
async def test_met_12_exactly_n_tokens_the_first_one_first(n: int, size: int) -> None:
    async with running(Script(chain=lambda _turn: size)) as node:
        assert await node.answer(make(n)) == (("abc" * 6)[:n], n, Finished("length"))


async def test_met_04_tokens_are_counted_not_chunks() -> None:
    sizes = [4, 4, 3]
    async with running(Script(chain=lambda turn: sizes[turn] if turn < 3 else 1)) as node:
        counts = [len(delta.ids) async for delta in node.service.stream(make(12))]
    assert counts == [1, 4, 4, 3]


async def test_met_03_the_end_does_not_wait_for_the_slot() -> None:
    """The last token and the end are read while the engine still clears up."""
    with Gate() as gate:

        class SlowToClose(ScriptedDecode):
            def close(self, sequence: Any) -> None:
                gate.pass_through(0)
                super().close(sequence)

        decode = SlowToClose(Script(), slots=1)
        service = local_service(ScriptedPrefill(Script()), decode, byte_tokenizer())
        async with service:
            deltas = [delta.text async for delta in service.stream(make(4))]
            assert deltas == ["a", "b", "c", "a"]
            assert decode.busy, "the slot is not free yet"
            gate.open()
    assert decode.busy == {}


def says(*ids: int) -> Callable[[Sequence[int], int], int]:
    return lambda _prompt, index: ids[index]


@pytest.mark.parametrize(
    ("first", "limits", "text", "outcome"),
    [
        pytest.param(EOS, Limits(5, eos_ids=frozenset({EOS})), "", Finished("stop"), id="eos"),
        pytest.param(65, Limits(5, stop_ids=frozenset({65})), "", Finished("stop", 65), id="id"),
        pytest.param(65, Limits(1), "A", Finished("length"), id="budget"),
    ],
)
async def test_stp_08_a_first_token_that_ends_it_never_reaches_the_decode_engine(
    first: int, limits: Limits, text: str, outcome: Finished
) -> None:
    opened: list[int] = []
    node = Node(Script(token=says(first), before_import=opened.append))
    async with node.service:
        assert await node.answer(make(limits)) == (text, 1, outcome)
        assert node.service.ledger.counts == {}
    assert opened == []


async def test_the_first_token_leaves_before_the_import() -> None:
    with Gate() as gate:
        async with running(Script(before_import=gate.pass_through)) as node:
            deltas = node.service.stream(make(3))
            assert (await anext(deltas)).text == "a"
            await gate.arrival()
            gate.open()
            assert [delta.text async for delta in deltas] == ["b", "c"]


# --- leaving -----------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["before_chunk", "before_import", "before_chain"])
async def test_dis_04_cancelled_while_the_engine_is_at(place: str) -> None:
    with Gate() as gate:
        hooks: dict[str, Any] = {place: gate.pass_through}
        async with running(Script(**hooks)) as node:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(node.answer, make(4000))
                await gate.arrival()
                await anyio.wait_all_tasks_blocked()
                assert node.service.ledger.counts["slot"] == 1
                tasks.cancel_scope.cancel()
            assert node.service.ledger.counts == {}, "at once, though the engine is stuck"
            gate.open()


async def test_dis_14_cancelled_in_the_queue() -> None:
    with Gate() as gate:
        async with running(Script(before_chunk=gate.pass_through)) as node:
            ends: dict[str, str] = {}

            async def ask(name: str, scope: anyio.CancelScope) -> None:
                with scope:
                    ends[name] = (await node.answer(make(3)))[0]

            waiting = anyio.CancelScope()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask, "first", anyio.CancelScope())
                await gate.arrival()
                tasks.start_soon(ask, "second", waiting)
                await anyio.wait_all_tasks_blocked()
                tasks.start_soon(ask, "third", anyio.CancelScope())
                await anyio.wait_all_tasks_blocked()
                assert node.service.ledger.counts == {"lease": 3, "slot": 1, "prefill": 1}
                waiting.cancel()
                await anyio.wait_all_tasks_blocked()
                assert node.service.ledger.counts == {"lease": 2, "slot": 1, "prefill": 1}
                gate.open()
            assert ends == {"first": "abc", "third": "abc"}


async def test_dis_14_without_a_queue_it_refuses_at_once() -> None:
    with Gate() as gate:
        script = Script(before_chunk=gate.pass_through)
        async with running(script, queue_timeout=0) as node, anyio.create_task_group() as tasks:
            tasks.start_soon(node.answer, make(3))
            await gate.arrival()
            _, count, outcome = await node.answer(make(3))
            assert count == 0
            assert isinstance(outcome.error, Busy)
            gate.open()


async def test_a_stop_string_that_matches_while_the_cache_is_imported() -> None:
    with Gate() as gate:
        async with running(Script(before_import=gate.pass_through)) as node:
            text, count, outcome = await node.answer(make(4000, stop=("a",)))
            assert (text, count) == ("", 1)
            assert outcome == Finished("stop", stop_reason="a")
            assert node.service.ledger.counts == {}, "before the engine has come back"
            gate.open()


async def test_a_slot_that_is_opened_right_after_its_close() -> None:
    """The next request gets the slot at once; its import waits for the old one's end."""
    with Gate() as gate:
        async with running(Script(before_import=gate.pass_through)) as node:
            async with aclosing(node.service.stream(make(4000))) as deltas:
                assert (await anext(deltas)).text == "a"
                await gate.arrival()
            async with aclosing(node.service.stream(make(3))) as deltas:
                assert (await anext(deltas)).text == "a"
                gate.open()
                assert [delta.text async for delta in deltas] == ["b", "c"]


async def test_a_reader_that_leaves_in_the_middle() -> None:
    async with running(Script()) as node:
        for _ in range(5):
            seen: list[str] = []
            async with aclosing(node.service.stream(make(4000))) as deltas:
                async for delta in deltas:
                    seen.append(delta.text)
                    if len(seen) == 3:
                        break
            assert "".join(seen).startswith("abc")
            assert node.service.ledger.counts == {}


# --- failing -----------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["before_chunk", "before_import", "before_chain"])
async def test_a_fault_ends_one_request_only(place: str) -> None:
    faults = [EngineFault("a bad page")]

    def fail_once(_number: int) -> None:
        if faults:
            raise faults.pop()

    hooks: dict[str, Any] = {place: fail_once}
    async with running(Script(**hooks)) as node:
        text, count, outcome = await node.answer(make(5))
        assert isinstance(outcome.error, EngineFault)
        assert (text, count) == (("", 0) if place == "before_chunk" else ("a", 1))
        assert node.service.ready


@pytest.mark.parametrize("place", ["before_chunk", "before_import", "before_chain"])
async def test_a_death_ends_all(place: str) -> None:
    def die(_number: int) -> None:
        raise RuntimeError("device lost")

    hooks: dict[str, Any] = {place: die}
    node = Node(Script(**hooks), slots=2)
    outcomes: list[Finished] = []

    async def ask() -> None:
        outcomes.append((await node.answer(make(4000)))[2])

    async with node.service:
        async with anyio.create_task_group() as tasks:
            for _ in range(2):
                tasks.start_soon(ask)
        death = await node.service.died()
        assert [outcome.error for outcome in outcomes] == [death, death]
        assert isinstance(death.__cause__, RuntimeError)
        assert not node.service.ready
        assert node.service.ledger.counts == {}
        with pytest.raises(EngineDied):
            node.service.open(make(3), Plain)
    assert node.decode.busy == {}


async def test_a_request_that_can_never_fit_is_refused_before_it_waits() -> None:
    with Gate() as gate:
        script = Script(before_chunk=gate.pass_through)
        async with running(script) as node, anyio.create_task_group() as tasks:
            tasks.start_soon(node.answer, make(3))
            await gate.arrival()
            _, _, outcome = await node.answer(make(4094))
            assert isinstance(outcome.error, ContextLengthExceeded)
            assert "has 3 tokens and max_tokens is 4094, together 4097; the window is 4096" in str(
                outcome.error
            )
            gate.open()


async def test_the_service_can_be_left_with_requests_in_it() -> None:
    endless = 10**9
    with Gate() as gate:
        script = Script(before_chain=gate.pass_through)
        node = Node(script, max_seq_len=2 * endless)
        ends: list[TilertStreamError | None] = []

        async def ask() -> None:
            ends.append((await node.answer(make(endless)))[2].error)

        async with anyio.create_task_group() as tasks, node.service:
            tasks.start_soon(ask)
            await gate.arrival()
            gate.open()
    assert [type(end) for end in ends] == [NotReady]
    assert node.service.ledger.counts == {}
    assert node.decode.busy == {}


def test_the_stages_fit_their_contracts() -> None:
    pipeline = Node(Script()).service.pipeline
    assert [link.name for link in pipeline] == [
        "reserve",
        "prefill",
        "import_kv",
        "decode",
        "detokenize",
        "stop_strings",
    ]
    assert all(isinstance(link.target, Step) for link in pipeline.links[:3])
