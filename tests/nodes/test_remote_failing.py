"""Nodes that refuse, die, or never answer: what the client is told, and what is held after that."""

from __future__ import annotations

import socket
from typing import Any

import anyio
import orjson
import pytest

from tests.nodes.routing import LIMIT, Host, Router, letters, make, routing
from tilert_stream.cluster.address import NodeAddress
from tilert_stream.cluster.decode_call import DecodeCall
from tilert_stream.cluster.errors import LayoutMismatch, ReservationLost
from tilert_stream.cluster.grant import Grant
from tilert_stream.cluster.keeper import Keeper
from tilert_stream.errors import (
    Busy,
    ContextLengthExceeded,
    InvalidRequest,
    KVTimeout,
    NotReady,
    TilertStreamError,
)
from tilert_stream.events import Finished, Sampling
from tilert_stream.http.client import ConnectFailed, HTTPClient, UpstreamClosed, UpstreamError
from tilert_stream.testing.pd_nodes import Answer, ScriptedDecodeNode, ScriptedPrefillNode


def once(*answers: Answer) -> Any:
    """A hook that answers with each in turn, and then leaves it to the node."""
    left = list(answers)

    async def hook(_fields: dict[str, Any]) -> Answer | None:
        return left.pop(0) if left else None

    return hook


def openai(status: int, message: str, **fields: Any) -> Answer:
    return Answer(status, orjson.dumps({"error": {"message": message, **fields}}))


def flat(status: int, code: str, message: str, **headers: str) -> Answer:
    return Answer(status, orjson.dumps({"error": message, "code": code}), headers)


def answers_within(router: Router, seconds: float) -> None:
    """So long the first decode node may take for each of its calls from now on."""
    node = router.decodes.members[0].node
    node._posts.answer_timeout = seconds  # pyright: ignore[reportPrivateUsage] - one node's alone


# --- prefill -----------------------------------------------------------------------------------


async def test_pd_09_err_08_a_400_of_prefill() -> None:
    """Exactly one call, prefill's words, and the decode node's slot is given back at once."""
    refusal = openai(400, "min_p must be in [0, 1]", param="min_p", code=400)
    prefill = ScriptedPrefillNode(before_answer=once(refusal))
    decode = ScriptedDecodeNode()
    async with routing([prefill, prefill], decode) as router:
        error = await router.error_of(make())
        assert isinstance(error, InvalidRequest)
        assert (error.message, error.param) == ("min_p must be in [0, 1]", "min_p")
        assert len(prefill.calls) == 1
        await router.everything_is_back()
        assert decode.paths() == ["/pd/reserve", "/pd/cancel"]


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (openai(401, "no key"), 502),
        (openai(404, "The model `x` does not exist.", param="model"), 404),
        (Answer(404, b'{"detail":"Not Found"}'), 502),
        (openai(408, "slow"), 408),
        (openai(413, "big"), 413),
        (openai(422, "url"), 422),
        (openai(429, "queue"), 429),
        (openai(500, "boom"), 502),
        (openai(503, "starting"), 503),
        (openai(504, "late"), 504),
        (Answer(200, b"<html>"), 502),
        (Answer(200, b"{}"), 502),
        (Answer(200, b"data: {}\n\n", {"content-type": "text/event-stream"}), 502),
        (Answer(200, b'{"choices":[{"finish_reason":"abort","token_ids":[5]}]}'), 502),
    ],
)
async def test_pd_10_pd_11_what_prefill_answers(answer: Answer, status: int) -> None:
    prefill = ScriptedPrefillNode(before_answer=once(answer))
    decode = ScriptedDecodeNode()
    async with routing(prefill, decode) as router:
        error = await router.error_of(make())
        assert error.status == status
        await router.everything_is_back()
        assert "/pd/decode" not in decode.paths()


async def test_pd_10_prefill_is_not_there() -> None:
    def kill(prefills: list[Host], _decodes: list[Host]) -> None:
        prefills[0].kill()

    decode = ScriptedDecodeNode()
    async with routing(ScriptedPrefillNode(), decode, prepare=kill, serves_next=False) as router:
        error = await router.error_of(make())
        assert isinstance(error, ConnectFailed)
        assert error.status == 503
        assert "127.0.0.1" not in error.message


async def test_pd_10_prefill_does_not_answer() -> None:
    async def never(_fields: dict[str, Any]) -> None:
        await anyio.sleep_forever()

    prefill = ScriptedPrefillNode(before_answer=never)
    async with routing(
        prefill, ScriptedDecodeNode(), prefill_timeout=0.1, serves_next=False
    ) as router:
        assert (await router.error_of(make())).status == 504
        await router.everything_is_back()
        # None, where a slow machine has not brought the call there by then.
        assert prefill.aborted == len(prefill.calls) <= 1


async def test_a_prefill_that_dies_is_replaced_by_the_next() -> None:
    hosts: list[Host] = []

    async def die(_fields: dict[str, Any]) -> None:
        hosts[0].kill()
        await anyio.sleep_forever()

    prefills = [ScriptedPrefillNode(before_answer=die), ScriptedPrefillNode()]
    decode = ScriptedDecodeNode(token=letters)
    async with routing(prefills, decode, prepare=lambda p, _d: hosts.extend(p)) as router:
        assert await router.answer(make(3)) == ("abc", 3, Finished("length"))
        assert decode.paths().count("/pd/reserve") == 1, "the slot was kept"
        assert [status.answers for status in router.prefills.status()] == [False, True]


async def test_a_busy_prefill_is_skipped() -> None:
    busy = Answer(429, b"{}", {"retry-after": "9"})
    prefills = [ScriptedPrefillNode(before_answer=once(busy)), ScriptedPrefillNode()]
    async with routing(prefills, ScriptedDecodeNode(token=letters)) as router:
        assert await router.answer(make(3)) == ("abc", 3, Finished("length"))


# --- reserving ---------------------------------------------------------------------------------


async def test_a_busy_decode_node_is_skipped_and_all_busy_is_429() -> None:
    decodes = [ScriptedDecodeNode(token=letters) for _ in range(2)]
    prefill = ScriptedPrefillNode()
    async with routing(prefill, decodes) as router:
        decodes[0].held["another"] = 7
        assert await router.answer(make(3)) == ("abc", 3, Finished("length"))
        decodes[1].held["another"] = 7
        error = await router.error_of(make())
        assert isinstance(error, Busy)
        assert (error.status, error.retry_after) == (429, 3)
        asked = len(prefill.calls)
        assert isinstance(await router.error_of(make()), Busy)
        assert len(prefill.calls) == asked, "a node that has refused is not counted on"
        for node in decodes:
            node.held.clear()


@pytest.mark.parametrize(
    ("answer", "error", "status"),
    [
        (flat(429, "slots_busy", "busy"), Busy, 429),
        (flat(400, "context_length_exceeded", "the window is 5"), ContextLengthExceeded, 400),
        (flat(409, "kv_layout_mismatch", "dtype: bf16, fp8"), LayoutMismatch, 503),
        (flat(401, "invalid_cluster_signature", "sign"), UpstreamError, 502),
        (flat(503, "not_ready", "draining"), NotReady, 503),
        (flat(500, "internal_error", "boom"), UpstreamError, 502),
        (Answer(200, b"{}"), UpstreamError, 502),
        (Answer(200, b"<html>"), UpstreamError, 502),
        (Answer(200, b'{"incarnation":"a","generation":1,"region":0,"ttl":0}'), UpstreamError, 502),
        (Answer(200, b'{"incarnation":"","generation":1,"region":0,"ttl":1}'), UpstreamError, 502),
        (
            Answer(200, b'{"incarnation":"a","generation":true,"region":0,"ttl":1}'),
            UpstreamError,
            502,
        ),
    ],
)
async def test_err_05_what_a_decode_node_answers_first(
    answer: Answer, error: type[TilertStreamError], status: int
) -> None:
    prefill = ScriptedPrefillNode()
    decode = ScriptedDecodeNode(hooks={"/pd/reserve": once(answer)})
    async with routing(prefill, decode) as router:
        raised = await router.error_of(make())
        assert isinstance(raised, error)
        assert raised.status == status
        assert prefill.calls == [], "before a prompt is computed"


async def test_a_mismatch_says_both_values() -> None:
    words = "dtype: this node has bf16, prefill fp8_ds_mla (--kv-cache-dtype)"
    decode = ScriptedDecodeNode(hooks={"/pd/reserve": once(flat(409, "kv_layout_mismatch", words))})
    async with routing(ScriptedPrefillNode(), decode) as router:
        assert words in (await router.error_of(make())).message


async def test_a_dead_decode_node_and_then_the_next() -> None:
    decodes = [ScriptedDecodeNode(), ScriptedDecodeNode(token=letters)]
    async with routing(ScriptedPrefillNode(), decodes, prepare=lambda _p, d: d[0].kill()) as router:
        assert await router.answer(make(3)) == ("abc", 3, Finished("length"))
        assert [status.answers for status in router.decodes.status()] == [False, True]


async def test_a_node_that_may_have_granted_is_told() -> None:
    """It did not answer in time; the next node serves."""
    go = anyio.Event()

    async def slow(_fields: dict[str, Any]) -> None:
        answers_within(router, LIMIT)  # from now on: it is to be told at leisure
        await go.wait()

    decodes = [
        ScriptedDecodeNode(hooks={"/pd/reserve": slow}),
        ScriptedDecodeNode(token=letters),
    ]
    async with routing(ScriptedPrefillNode(), decodes, serves_next=False) as router:
        answers_within(router, 0.2)
        assert await router.answer(make(3)) == ("abc", 3, Finished("length"))
        await router.everything_is_back()
        assert decodes[0].cancelled == ["feed"]
        go.set()


async def test_pd_14_nothing_to_generate_is_refused_here() -> None:
    decode = ScriptedDecodeNode()
    async with routing(ScriptedPrefillNode(), decode) as router:
        assert isinstance(await router.error_of(make(0)), InvalidRequest)
        assert decode.calls == []


# --- while prefill works -----------------------------------------------------------------------


async def test_err_08_a_decode_node_that_dies_while_prefill_works() -> None:
    """Its connection ends, another node is asked, and the prompt is computed again."""
    hosts: list[Host] = []
    kills = [0]

    async def die(_fields: dict[str, Any]) -> None:
        if kills:
            hosts[kills.pop()].kill()
            await anyio.sleep_forever()

    prefill = ScriptedPrefillNode(before_answer=die)
    decodes = [ScriptedDecodeNode(), ScriptedDecodeNode(token=letters)]
    async with routing(prefill, decodes, prepare=lambda _p, d: hosts.extend(d)) as router:
        assert await router.answer(make(3)) == ("abc", 3, Finished("length"))
        assert prefill.aborted == 1, "the other leg was cancelled at once"
        assert [call["kv_transfer_params"]["tilert_request"] for call in prefill.calls] == [
            "feed",
            "feed",
        ]


async def test_err_08_and_nobody_else_is_there() -> None:
    hosts: list[Host] = []

    async def die(_fields: dict[str, Any]) -> None:
        hosts[0].kill()
        await anyio.sleep_forever()

    prefill = ScriptedPrefillNode(before_answer=die)
    async with routing(
        prefill,
        ScriptedDecodeNode(),
        prepare=lambda _p, d: hosts.extend(d),
        serves_next=False,
    ) as router:
        assert isinstance(await router.error_of(make()), ConnectFailed)
        await router.everything_is_back()
        assert prefill.aborted == 1


async def test_a_reservation_is_kept_alive_while_prefill_works() -> None:
    renewed = anyio.Event()
    renewals: list[dict[str, Any]] = []

    async def count(fields: dict[str, Any]) -> None:
        renewals.append(fields)
        if len(renewals) == 3:
            renewed.set()

    async def wait(_fields: dict[str, Any]) -> None:
        await renewed.wait()

    decode = ScriptedDecodeNode(ttl=0.03, token=letters, hooks={"/pd/renew": count})
    async with routing(ScriptedPrefillNode(before_answer=wait), decode) as router:
        assert await router.answer(make(3)) == ("abc", 3, Finished("length"))
        assert renewals[0] == {"rid": "feed", "generation": 1}


async def test_a_reservation_that_expired_is_made_again() -> None:
    works = [True]

    async def expire(_fields: dict[str, Any]) -> None:
        if works:
            works.clear()
            decode.held.clear()
            await anyio.sleep_forever()

    prefill = ScriptedPrefillNode(before_answer=expire)
    decode = ScriptedDecodeNode(ttl=0.03, token=letters)
    async with routing(prefill, decode) as router:
        assert await router.answer(make(3)) == ("abc", 3, Finished("length"))
        generations = [call["kv_transfer_params"]["tilert_generation"] for call in prefill.calls]
        assert generations == [1, 2], "the KV cache of the first can land nowhere"


async def test_a_reservation_that_is_lost_again_and_again() -> None:
    async def expire(_fields: dict[str, Any]) -> None:
        decode.held.clear()
        await anyio.sleep_forever()

    prefill = ScriptedPrefillNode(before_answer=expire)
    decode = ScriptedDecodeNode(ttl=0.03)
    async with routing(prefill, decode, serves_next=False) as router:
        assert isinstance(await router.error_of(make()), ReservationLost)
        assert len(prefill.calls) == 4


async def test_a_renewal_that_goes_wrong_is_tried_again() -> None:
    renewed = anyio.Event()
    faults = [Answer(500, b"{}"), Answer(502, b"<html>")]

    async def stumble(_fields: dict[str, Any]) -> Answer | None:
        if not faults:
            renewed.set()
            return None
        return faults.pop()

    async def wait(_fields: dict[str, Any]) -> None:
        await renewed.wait()

    decode = ScriptedDecodeNode(ttl=0.03, token=letters, hooks={"/pd/renew": stumble})
    prefill = ScriptedPrefillNode(before_answer=wait)
    async with routing(prefill, decode) as router:
        assert await router.answer(make(3)) == ("abc", 3, Finished("length"))
        assert len(prefill.calls) == 1


async def test_a_renewal_that_is_refused_again_and_again() -> None:
    """In words of a node that holds the slot no longer, and does not say so."""
    asked: list[dict[str, Any]] = []

    async def refuse(fields: dict[str, Any]) -> Answer:
        asked.append(fields)
        return Answer(429, b"{}")

    async def wait(_fields: dict[str, Any]) -> None:
        await anyio.sleep_forever()

    decode = ScriptedDecodeNode(ttl=0.03, hooks={"/pd/renew": refuse})
    prefill = ScriptedPrefillNode(before_answer=wait)
    async with routing(prefill, decode, serves_next=False) as router:
        assert isinstance(await router.error_of(make()), Busy)
        assert len(asked) == 3


async def test_every_reservation_at_a_node_is_kept_alive() -> None:
    """Those that come while others are kept, and those that come when none is."""
    renewed = {rid: anyio.Event() for rid in ("a1", "a2", "a3", "beef")}

    async def count(fields: dict[str, Any]) -> None:
        renewed[fields["rid"]].set()

    async def wait(fields: dict[str, Any]) -> None:
        await renewed[fields["request_id"]].wait()

    decode = ScriptedDecodeNode(slots=2, ttl=0.03, token=letters, hooks={"/pd/renew": count})
    async with routing(ScriptedPrefillNode(before_answer=wait), decode) as router:
        async with anyio.create_task_group() as tasks:
            for rid in ("a1", "a2"):
                tasks.start_soon(router.answer, make(3, rid))
        assert await router.answer(make(3, "a3")) == ("abc", 3, Finished("length"))


async def test_nothing_is_kept_before_the_keeper_is_entered() -> None:
    with HTTPClient() as client:
        node = DecodeCall(client, NodeAddress("127.0.0.1", 1, 2))
        with pytest.raises(RuntimeError, match="must be entered"):
            Keeper().keep(node, Grant("feed", "here", 1, 0, 30.0), print)


# --- decoding ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "error", "status"),
    [
        (flat(400, "invalid_value", "no"), InvalidRequest, 400),
        (flat(410, "kv_grant_gone", "expired"), ReservationLost, 503),
        (flat(504, "kv_timeout", "the KV cache did not land"), KVTimeout, 504),
        (Answer(504, b'{"error":"kv_transfer_timeout","rid":"feed"}'), KVTimeout, 504),
        (flat(502, "kv_transfer_failed", "prefill: CUDA out of memory"), UpstreamError, 502),
        (flat(503, "not_ready", "draining"), NotReady, 503),
        (Answer(500, b"oops"), UpstreamError, 502),
    ],
)
async def test_pd_13_pd_14_what_a_decode_node_answers_then(
    answer: Answer, error: type[TilertStreamError], status: int
) -> None:
    decode = ScriptedDecodeNode(hooks={"/pd/decode": once(answer)})
    async with routing(ScriptedPrefillNode(), decode) as router:
        text, count, outcome = await router.answer(make(9))
        assert (text, count) == ("a", 1), "the first token had left"
        assert isinstance(outcome.error, error)
        assert outcome.error is not None
        assert outcome.error.status == status


async def test_pd_14_an_aborted_hand_off_says_why() -> None:
    answer = flat(502, "kv_transfer_failed", "prefill gave it up: preempted")
    decode = ScriptedDecodeNode(hooks={"/pd/decode": once(answer)})
    async with routing(ScriptedPrefillNode(), decode) as router:
        assert "prefill gave it up: preempted" in (await router.error_of(make(9))).message


@pytest.mark.parametrize("count", [1, 2, 6])
async def test_err_01_a_decode_node_that_dies_at_a_token(count: int) -> None:
    hosts: list[Host] = []

    async def die(index: int) -> None:
        if index == count:
            hosts[0].kill()
            await anyio.sleep_forever()

    decodes = [ScriptedDecodeNode(token=letters, between=die), ScriptedDecodeNode()]
    async with routing(
        ScriptedPrefillNode(), decodes, prepare=lambda _p, d: hosts.extend(d)
    ) as router:
        text, tokens, outcome = await router.answer(make(50))
        assert (text, tokens) == ("abcdefgh"[:count], count)
        assert outcome.reason == "error", "never length or stop, and never another node's answer"
        assert isinstance(outcome.error, UpstreamClosed)
        assert outcome.error.status == 502


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(temperature=0),
        Sampling(seed=7),
        Sampling(grammar='{"grammars":[{"json_schema":{"type":"object"}}]}'),
    ],
    ids=["drawn", "greedy", "seeded", "json-schema"],
)
async def test_err_11_no_other_node_goes_on_with_what_has_begun(sampling: Sampling) -> None:
    """The first one dies after five tokens, and the second stands beside it, free."""
    hosts: list[Host] = []

    async def die(index: int) -> None:
        if index == 5:
            hosts[0].kill()
            await anyio.sleep_forever()

    other = ScriptedDecodeNode(token=letters)
    prefill = ScriptedPrefillNode()
    decodes = [ScriptedDecodeNode(token=letters, between=die), other]
    async with routing(prefill, decodes, prepare=lambda _p, d: hosts.extend(d)) as router:
        text, tokens, outcome = await router.answer(make(50, sampling=sampling))
        assert (text, tokens, outcome.reason) == ("abcde", 5, "error")
        assert other.paths() == []
        assert len(prefill.calls) == 1


async def test_err_01_a_stream_that_ends_cleanly_without_done() -> None:
    lines = Answer(200, b'{"t":[97]}\n{"t":[98]}\n')
    decode = ScriptedDecodeNode(hooks={"/pd/decode": once(lines)})
    async with routing(ScriptedPrefillNode(), decode) as router:
        text, count, outcome = await router.answer(make(9))
        assert (text, count) == ("ab", 2)
        assert isinstance(outcome.error, UpstreamClosed)


async def test_the_kv_cache_does_not_come_and_the_node_does_not_say_so() -> None:
    async def never(_fields: dict[str, Any]) -> None:
        await anyio.sleep_forever()

    async def reserved(_fields: dict[str, Any]) -> None:
        answers_within(router, 0.05)

    decode = ScriptedDecodeNode(hooks={"/pd/reserve": reserved, "/pd/decode": never})
    async with routing(ScriptedPrefillNode(), decode, kv_timeout=0.05, serves_next=False) as router:
        assert (await router.error_of(make(9))).status == 504
        await router.everything_is_back()
        # None, where a slow machine has not brought the call there by then.
        assert decode.left == decode.paths().count("/pd/decode") <= 1


async def test_a_port_that_is_no_http() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0)

        async def greet() -> None:
            for _ in range(2):
                await anyio.wait_readable(listener)
                peer, _ = listener.accept()
                peer.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")
                peer.close()

        def redirect(_prefills: list[Host], decodes: list[Host]) -> None:
            decodes[0].port = listener.getsockname()[1]

        async with (
            anyio.create_task_group() as tasks,
            routing(
                ScriptedPrefillNode(),
                [ScriptedDecodeNode(), ScriptedDecodeNode(token=letters)],
                prepare=redirect,
            ) as router,
        ):
            tasks.start_soon(greet)
            assert await router.answer(make(3)) == ("abc", 3, Finished("length"))
            await router.everything_is_back()
            tasks.cancel_scope.cancel()
