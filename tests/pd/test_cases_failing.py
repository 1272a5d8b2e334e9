"""Cases of failure that take a router and a decode node, each behind its own server."""

from __future__ import annotations

import re
from typing import Any, Final

import anyio
import anyio.lowlevel
import pytest

from tests.pd.cluster import Answer, Cluster, ScriptedModel, read
from tests.pd.layouts import SlowlyPacked
from tests.pd.raw_prefill import raw_prefill
from tilert_engine.layouts.abc import Description
from tilert_engine.scripted import Script
from tilert_stream.errors import InvalidRequest
from tilert_stream.nodes import node_app
from tilert_stream.nodes.decode_orders import DecodeBody, DecodeOrder, to_order
from tilert_stream.testing import Gate
from tilert_transports.control.messages import Abort, Released

CONTENT: Final = re.compile(rb'"content":"([a-z]*)"')
FIRST: Final = 1
"""The generation of a node's first grant."""
both = pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])


class TwoSenders(SlowlyPacked):
    """Two ranks send; a prefill node of ours is the first of them."""

    sender_ranks: tuple[int, ...] = (0, 1)

    def describe(self) -> Description:
        return {**super().describe(), "senders": 2}


def is_kv_timeout(answer: Answer, *, stream: bool) -> bool:
    """The first token had left where it is streamed; what follows it is an error and a cut."""
    status, text = (200, "a") if stream else (504, "")
    return (answer.status, answer.text, answer.finish_reason, answer.error) == (
        status,
        text,
        None,
        "kv_timeout",
    ) and answer.complete is not stream


@both
async def test_dis_04_kv_that_never_comes_is_a_504_and_the_slot_is_free(stream: bool) -> None:
    with Gate() as gate:
        cluster = Cluster(prefill_layout=SlowlyPacked(gate), slots=1)
        async with cluster.running():
            hasty = (await cluster.add_router(kv_timeout=0.1)).origin
            answer = await cluster.ask(hasty, stream=stream, max_tokens=9)
            assert is_kv_timeout(answer, stream=stream)
            gate.open()
            await cluster.idle()
            # One token needs no KV cache, and has no limit to keep.
            assert (await cluster.ask(hasty, stream=stream, max_tokens=1)).text == "a"
            assert (await cluster.ask(stream=stream, max_tokens=3)).text == "abc"


@both
async def test_dis_04_left_while_the_kv_cache_is_awaited(stream: bool) -> None:
    """No limit runs out here: it is the leaving that frees the slot."""
    with Gate() as gate:
        cluster = Cluster(prefill_layout=SlowlyPacked(gate), slots=1)
        async with cluster.running():
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(leave_it, cluster, stream)
                await gate.arrival()
                while not cluster.decode_apps[0].service.ledger.counts:
                    await anyio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()
            while cluster.decode_apps[0].node.requests:
                await anyio.lowlevel.checkpoint()
            gate.open()
            await cluster.idle()
            assert (await cluster.ask(stream=stream, max_tokens=3)).text == "abc"


async def leave_it(cluster: Cluster, stream: bool) -> None:
    await cluster.ask(stream=stream, max_tokens=30)


@both
async def test_kv_03_a_rank_twice_and_one_that_does_not_exist_are_not_the_missing_one(
    stream: bool,
) -> None:
    """Rank 0 has landed and says so again, rank 7 is refused, rank 1 never comes: 504."""
    imported: list[int] = []
    with Gate() as gate, Gate() as prefill:
        layout = TwoSenders(gate)
        script = Script(before_import=imported.append)
        cluster = Cluster(
            prefill=Script(before_chunk=prefill.pass_through),
            prefill_layout=layout,
            decode_models=[ScriptedModel(script, slots=1, layout=layout)],
            router_options={"kv_timeout": 0.1},
        )
        answers: list[Answer] = []
        async with cluster.running():
            async with anyio.create_task_group() as tasks, raw_prefill(cluster) as raw:

                async def ask() -> None:
                    answers.append(await cluster.ask(stream=stream, max_tokens=9))

                tasks.start_soon(ask)
                rid = await promised(cluster)
                await raw.say(raw.claim(rid, FIRST, rank=7))
                assert "ranks 0, 1 do" in (await raw.hear())["reason"]
                await raw.say(raw.claim(rid, FIRST))
                assert (await raw.hear())["type"] == "grant"
                for _ in range(2):
                    await raw.say(raw.commit(FIRST))
                assert (await raw.hear())["type"] == "released"
                prefill.open()  # the time to wait for the KV cache begins
                while not answers:
                    await anyio.lowlevel.checkpoint()
            assert is_kv_timeout(answers[0], stream=stream)
            gate.open()
            await cluster.idle()
    assert imported == [], "never begun on a part of it"


@both
@pytest.mark.parametrize("router_waits", [True, False])
async def test_pd_14_a_rank_that_gives_up_ends_what_the_other_has_brought(
    router_waits: bool, stream: bool
) -> None:
    """Rank 0 has landed, rank 1 gives up while it writes, after the router has come or before."""
    imported: list[int] = []
    with Gate() as gate, Gate() as prefill:
        layout = TwoSenders(gate)
        script = Script(before_import=imported.append)
        cluster = Cluster(
            prefill=Script(before_chunk=prefill.pass_through),
            prefill_layout=layout,
            decode_models=[ScriptedModel(script, slots=1, layout=layout)],
        )
        answers: list[Answer] = []
        async with cluster.running():
            async with (
                anyio.create_task_group() as tasks,
                raw_prefill(cluster) as first,
                raw_prefill(cluster) as second,
            ):

                async def ask() -> None:
                    answers.append(await cluster.ask(stream=stream, max_tokens=9))

                tasks.start_soon(ask)
                rid = await promised(cluster)
                for rank, raw in enumerate((first, second)):
                    await raw.say(raw.claim(rid, FIRST, rank=rank))
                    assert (await raw.hear())["type"] == "grant"
                await first.say(first.commit(FIRST))
                assert (await first.hear())["type"] == "released"
                if router_waits:
                    prefill.open()
                    while not cluster.decode_apps[0].service.ledger.counts:
                        await anyio.lowlevel.checkpoint()
                await second.say(Abort(FIRST, "preempted"))
                assert (await second.hear())["type"] == "released"
                prefill.open()
                while not answers:
                    await anyio.lowlevel.checkpoint()
            gate.open()
            await cluster.idle()
    (answer,) = answers
    # Of a stream the first token had left: prefill had answered.
    assert (answer.status, answer.text) == ((200, "a") if stream else (502, ""))
    assert (answer.error, answer.finish_reason) == ("decode_failed", None)
    assert answer.message.endswith("prefill node raw gave up: preempted")
    assert answer.complete is not stream
    assert imported == []


@both
async def test_pd_13_prefill_is_told_to_drop_what_decode_refuses(
    stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A 400 at the dispatch, while a sender writes: it hears of the end, and nothing is held."""
    refusals = [True]

    def refuse(asked: DecodeBody, eos_ids: frozenset[int]) -> DecodeOrder:
        if refusals and refusals.pop():
            raise InvalidRequest("refused by script", param="top_k")
        return to_order(asked, eos_ids)

    monkeypatch.setattr(node_app, "to_order", refuse)
    answers: list[Answer] = []
    with Gate() as gate, Gate() as prefill:
        cluster = Cluster(
            prefill=Script(before_chunk=prefill.pass_through),
            prefill_layout=SlowlyPacked(gate),
            slots=1,
        )
        async with cluster.running():
            async with anyio.create_task_group() as tasks, raw_prefill(cluster) as raw:

                async def ask() -> None:
                    answers.append(await cluster.ask(stream=stream, max_tokens=9))

                tasks.start_soon(ask)
                await raw.say(raw.claim(await promised(cluster), FIRST))
                assert (await raw.hear())["type"] == "grant"
                prefill.open()
                told = await raw.hear()
                assert (told["type"], told["generation"]) == ("abort", FIRST)
                await raw.say(Released(FIRST))
                while not answers:
                    await anyio.lowlevel.checkpoint()
            gate.open()
            await cluster.idle()
            assert (await cluster.ask(stream=stream, max_tokens=3)).text == "abc"
    assert (answers[0].status, answers[0].error) == (200 if stream else 400, "invalid_value")
    assert answers[0].message == "refused by script"
    assert not answers[0].whole


async def promised(cluster: Cluster) -> str:
    """The request that holds a slot."""
    node = cluster.decode_apps[0].node
    while not node.requests:
        await anyio.lowlevel.checkpoint()
    (rid,) = node.requests
    return rid


@both
@pytest.mark.parametrize(
    "given",
    [{"temperature": 0}, {"temperature": 1, "seed": 7}, {"ignore_eos": True, "min_tokens": 9}],
    ids=["greedy", "seeded", "constrained"],
)
async def test_err_11_what_has_begun_is_not_begun_again_on_another_node(
    given: dict[str, Any], stream: bool
) -> None:
    """A node dies after five tokens; a free one beside it is not asked to go on."""
    with Gate() as gate:

        def stop(turn: int) -> None:
            if turn == 4:
                gate.pass_through(turn)

        begun: list[int] = []
        scripts = [Script(before_chain=stop), Script(before_import=begun.append)]
        cluster = Cluster(decode=scripts, slots=1)
        answers: list[Answer] = []
        five = anyio.Event()

        def seen(body: bytes) -> None:
            if b"".join(CONTENT.findall(body)) == b"abcab":
                five.set()

        async with cluster.running(), anyio.create_task_group() as tasks:

            async def ask() -> None:
                async with cluster.request(stream=stream, max_tokens=9, **given) as response:
                    answers.append(await read(response, seen))

            tasks.start_soon(ask)
            await gate.arrival()
            if stream:
                await five.wait()
            cluster.decode_nodes[0].server.cut()
            while not answers:
                await anyio.lowlevel.checkpoint()
            gate.open()
        (answer,) = answers
        assert begun == []
        assert (answer.text, answer.status) == (("abcab", 200) if stream else ("", 502))
        assert (answer.error, answer.finish_reason) == ("upstream_closed", None)
        assert answer.complete is not stream
