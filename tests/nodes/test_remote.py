"""A router's remote legs: whole answers, in the right order, and their ends."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from tests.nodes.routing import PROMPT, FixedLayout, Plain, letters, make, routing
from tilert_stream.asgi.response import ErrorResponse
from tilert_stream.cluster.errors import DecodeFailed
from tilert_stream.cluster.prompt_digest import prompt_digest
from tilert_stream.events import Finished, Limits, Sampling
from tilert_stream.http.client import UpstreamInvalid
from tilert_stream.model.byte_tokenizer import EOS
from tilert_stream.testing.pd_nodes import Answer, ScriptedDecodeNode, ScriptedPrefillNode
from tilert_transports.control.auth import (
    NODE_HEADER,
    SIGNATURE_HEADER,
    ClusterKey,
    RequestVerifier,
)
from tilert_transports.control.errors import SignatureInvalid


@pytest.mark.parametrize("n", [2, 3, 16])
@pytest.mark.parametrize("names_ids", [True, False])
async def test_met_12_exactly_n_tokens_the_first_one_first(n: int, names_ids: bool) -> None:
    prefill = ScriptedPrefillNode(names_ids=names_ids)
    decode = ScriptedDecodeNode(token=letters)
    async with routing(prefill, decode) as router:
        text = "".join(chr(letters(index)) for index in range(n))
        assert await router.answer(make(n)) == (text, n, Finished("length"))
        assert decode.paths() == ["/pd/reserve", "/pd/decode"]
        assert decode.cancelled == []


async def test_what_the_nodes_are_told() -> None:
    prefill, decode = ScriptedPrefillNode(), ScriptedDecodeNode(token=letters)
    limits = Limits(7, min_tokens=3, eos_ids=frozenset({EOS}), stop_ids=frozenset({9}))
    async with routing(
        prefill, decode, layouts=FixedLayout({"name": "gqa"}), kv_timeout=60
    ) as router:
        await router.answer(make(limits))
        (_, reserve), (_, order) = decode.calls
        assert isinstance(reserve.pop("attempt"), int)
        assert reserve == {
            "rid": "feed",
            "max_len": 10,
            "prompt": {"tokens": 3, "last_token": 99, "digest": prompt_digest(PROMPT)},
            "layout": {"name": "gqa"},
        }
        assert order == {
            "rid": "feed",
            "generation": 1,
            "first_token_id": 97,
            "max_tokens": 7,
            "sampling": {
                "temperature": 1.0,
                "top_p": 1.0,
                "top_k": 0,
                "min_p": 0.0,
                "seed": None,
                "ignore_eos": False,
                "min_tokens": 3,
                "stop_token_ids": [9],
            },
            "timeout_s": 60,
            "stream": True,
        }
        (body,) = prefill.calls
        assert body["prompt"] == list(PROMPT)
        assert body["model"] == "prefill-model"
        assert (body["max_tokens"], body["min_tokens"], body["stream"]) == (1, 1, False)
        assert body["request_id"] == "feed"
        assert body["kv_transfer_params"] == {
            "tilert_host": "127.0.0.1",
            "tilert_ctrl_port": 5556,
            "tilert_http_port": router.decodes.members[0].node.address.http_port,
            "tilert_request": "feed",
            "tilert_incarnation": "one",
            "tilert_generation": 1,
        }


async def test_the_first_token_leaves_before_the_kv_cache_has_landed() -> None:
    landed = anyio.Event()

    async def wait(_order: dict[str, Any]) -> None:
        await landed.wait()

    decode = ScriptedDecodeNode(token=letters, hooks={"/pd/decode": wait})
    async with routing(ScriptedPrefillNode(), decode) as router:
        deltas = router.service.stream(make(3))
        assert (await anext(deltas)).text == "a"
        landed.set()
        assert "".join([delta.text async for delta in deltas]) == "bc"


@pytest.mark.parametrize(
    ("first", "limits", "text", "outcome"),
    [
        pytest.param(EOS, Limits(5, eos_ids=frozenset({EOS})), "", Finished("stop"), id="pd_05"),
        pytest.param(
            65, Limits(5, stop_ids=frozenset({65})), "", Finished("stop", 65), id="stp_08"
        ),
        pytest.param(65, Limits(1), "A", Finished("length"), id="pd_07"),
    ],
)
async def test_a_first_token_that_ends_it_is_never_decoded(
    first: int, limits: Limits, text: str, outcome: Finished
) -> None:
    prefill = ScriptedPrefillNode(first_token=lambda _prompt: first)
    decode = ScriptedDecodeNode()
    async with routing(prefill, decode, serves_next=False) as router:
        assert await router.answer(make(limits)) == (text, 1, outcome)
        await router.everything_is_back()
        assert decode.paths() == ["/pd/reserve", "/pd/cancel"]
        assert decode.cancelled == ["feed"]


async def test_met_11_cached_tokens_are_prefills() -> None:
    prefill = ScriptedPrefillNode(cached_tokens=2)
    async with (
        routing(prefill, ScriptedDecodeNode()) as router,
        router.service.open(make(3), Plain) as stream,
    ):
        async for _ in stream:
            pass
        assert stream.scope.usage.cached_tokens == 2
        assert stream.scope.usage.prompt_tokens == 3


async def test_met_03_the_end_does_not_wait_for_the_nodes_body() -> None:
    """The last token and the end are read while the node still clears up; then its connection
    carries the next request."""
    cleared = anyio.Event()
    decode = ScriptedDecodeNode(token=letters, slots=2, before_end=cleared.wait)
    async with routing(ScriptedPrefillNode(), decode) as router:
        assert await router.answer(make(4)) == ("abcd", 4, Finished("length"))
        assert router.service.ledger.counts == {}
        assert router.janitor.busy == 1
        cleared.set()
        await router.everything_is_back()
        assert decode.cancelled == []
        assert decode.left == 0
        opened = router.client.statistics().opened_total
        await router.answer(make(4, "dead"))
        assert router.client.statistics().opened_total == opened


async def test_a_body_that_never_ends_is_given_up() -> None:
    decode = ScriptedDecodeNode(slots=2, before_end=anyio.Event().wait)
    async with routing(ScriptedPrefillNode(), decode, serves_next=False) as router:
        router.janitor._within = 0.01  # pyright: ignore[reportPrivateUsage] - no test waits for seconds
        assert (await router.answer(make(3)))[2] == Finished("length")
        await router.everything_is_back()
        assert decode.left == 1


async def test_the_router_ends_at_the_budget_itself() -> None:
    """A node that does not stop is told so."""

    async def goes_on(order: dict[str, Any]) -> None:
        if order["rid"] == "feed":
            order["max_tokens"] = 400_000

    decode = ScriptedDecodeNode(token=letters, hooks={"/pd/decode": goes_on})
    async with routing(ScriptedPrefillNode(), decode) as router:
        assert await router.answer(make(3)) == ("abc", 3, Finished("length"))
        await router.everything_is_back()
        assert decode.cancelled == ["feed"]
        assert decode.left == 1


async def test_stp_02_a_stop_string_ends_the_node_too() -> None:
    go = anyio.Event()

    async def between(index: int) -> None:
        if index == 3:
            await go.wait()

    decode = ScriptedDecodeNode(token=letters, between=between)
    async with routing(ScriptedPrefillNode(), decode) as router:
        text, count, outcome = await router.answer(make(4000, stop=("bc",)))
        assert (text, count, outcome) == ("a", 3, Finished("stop", "bc"))
        await router.everything_is_back()
        assert decode.cancelled == ["feed"]
        assert decode.left == 1
        go.set()


async def test_eos_among_the_nodes_tokens() -> None:
    decode = ScriptedDecodeNode(token=lambda index: EOS if index == 2 else 98)
    async with routing(ScriptedPrefillNode(), decode, serves_next=False) as router:
        assert await router.answer(make(50)) == ("ab", 3, Finished("stop"))


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        pytest.param(b'{"error":"CUDA error: device lost"}\n', DecodeFailed, id="error"),
        pytest.param(b'{"t":[97]}\n{"t":[98]}\n{"error":"x"}\n', DecodeFailed, id="after two"),
        pytest.param(b'{"t":[97,98]}\n{"done":true,"n":5}\n', DecodeFailed, id="no reason"),
        pytest.param(b'{"t":[3]}\n', UpstreamInvalid, id="another first token"),
        pytest.param(b"<html>\n", UpstreamInvalid, id="garbage"),
    ],
)
async def test_err_02_a_nodes_failure_is_an_error(lines: bytes, error: type[Exception]) -> None:
    faults = [Answer(200, lines)]

    async def fail_once(_order: dict[str, Any]) -> Answer | None:
        return faults.pop() if faults else None

    decode = ScriptedDecodeNode(hooks={"/pd/decode": fail_once})
    async with routing(ScriptedPrefillNode(), decode) as router:
        assert isinstance(await router.error_of(make(9)), error)


async def test_several_requests_at_once() -> None:
    decode = [ScriptedDecodeNode(token=letters, slots=4) for _ in range(2)]
    async with routing(ScriptedPrefillNode(), decode) as router:
        answers: list[tuple[str, int, Finished]] = []

        async def ask(number: int) -> None:
            answers.append(await router.answer(make(40, f"{number:04x}")))

        async with anyio.create_task_group() as tasks:
            for number in range(8):
                tasks.start_soon(ask, number)
        text = "".join(chr(letters(index)) for index in range(40))
        assert answers == [(text, 40, Finished("length"))] * 8
        assert {len(node.paths()) for node in decode} == {8}, "spread evenly"


class KeyedDecodeNode(ScriptedDecodeNode):
    """Takes signed requests only, as a decode node with a cluster key does."""

    def __init__(self, key: ClusterKey) -> None:
        super().__init__(token=letters, slots=4)
        self.key = key
        self.verifier = RequestVerifier(key)
        self.refused: list[str] = []

    def restart(self) -> None:
        self.verifier = RequestVerifier(self.key)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            return await super().__call__(scope, receive, send)
        message = await receive()
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        try:
            self.verifier.check(
                headers.get(SIGNATURE_HEADER), scope["method"], scope["path"], message["body"]
            )
        except SignatureInvalid as error:
            self.refused.append(error.code)
            name = (NODE_HEADER.encode(), self.verifier.node.encode())
            await ErrorResponse(error, (name,))(scope, receive, send)
            return None
        messages = [message]

        async def replay() -> Any:
            return messages.pop() if messages else await receive()

        return await super().__call__(scope, replay, send)


async def test_requests_of_a_cluster_with_a_key_are_signed_for_the_node() -> None:
    key = ClusterKey("0123456789abcdef")
    node = KeyedDecodeNode(key)
    async with routing(ScriptedPrefillNode(), [node], sign=key.sign) as router:
        await router.answer(make(1, "dead"))
        await router.everything_is_back()
        await router.answer(make(3))
        await router.everything_is_back()
        assert node.paths() == ["/pd/reserve", "/pd/cancel", "/pd/reserve", "/pd/decode"]
        assert node.refused == ["invalid_cluster_signature"], "until the node was known"
        node.restart()
        assert await router.answer(make(3, "beef")) == ("abc", 3, Finished("length"))
        assert node.refused[1:] == ["cluster_signature_misdirected"], "until it was known again"


async def test_requests_that_meet_a_restarted_node_at_once_all_find_it() -> None:
    key = ClusterKey("0123456789abcdef")
    node = KeyedDecodeNode(key)
    async with routing(ScriptedPrefillNode(), [node], sign=key.sign) as router:
        answers: list[tuple[str, int, Finished]] = []

        async def ask(number: int) -> None:
            answers.append(await router.answer(make(3, f"{number:04x}")))

        async with anyio.create_task_group() as tasks:
            for number in range(4):
                tasks.start_soon(ask, number)
        assert answers == [("abc", 3, Finished("length"))] * 4


async def test_a_node_with_another_key_is_the_operators_fault() -> None:
    node = KeyedDecodeNode(ClusterKey("another cluster's"))
    sign = ClusterKey("0123456789abcdef").sign
    async with routing(ScriptedPrefillNode(), [node], sign=sign, serves_next=False) as router:
        assert (await router.error_of(make(3))).status == 502
        assert len(node.refused) == 2, "asked for its name, and once more"


async def test_pd_25_prefill_gets_the_routers_own_key() -> None:
    prefill = ScriptedPrefillNode()
    async with routing(prefill, ScriptedDecodeNode(), api_key="upstream") as router:
        await router.answer(make(3))
        assert prefill.headers[0]["authorization"] == "Bearer upstream"


async def test_a_pipeline_prints_where_its_work_is_done() -> None:
    async with routing(ScriptedPrefillNode(), [ScriptedDecodeNode()] * 2) as router:
        printed = str(router.pipeline)
        assert printed.count("⇢ decode d0, d1") == 3
        assert printed.count("⇢ prefill p0") == 1


# --- stock nodes -------------------------------------------------------------------------------


async def test_a_stock_node_is_picked_by_its_status() -> None:
    busy, free = (ScriptedDecodeNode(token=letters, stock=True) for _ in range(2))
    busy.held["another"] = 0
    prefill = ScriptedPrefillNode()
    async with routing(prefill, [busy, free]) as router:
        assert await router.answer(make(3)) == ("abc", 3, Finished("length"))
        assert busy.paths() == ["/pd/reserve", "/decode_status"]
        assert free.paths() == ["/pd/reserve", "/decode_status", "/pd/decode"]
        assert "generation" not in free.calls[-1][1]
        assert prefill.calls[0]["kv_transfer_params"] == {
            "tilert_host": "127.0.0.1",
            "tilert_ctrl_port": 5556,
            "tilert_http_port": router.decodes.members[1].node.address.http_port,
        }
        await router.answer(make(3, "dead"))
        assert free.paths().count("/pd/reserve") == 1, "it is known by now"
        busy.held.clear()


async def test_a_stock_node_is_not_asked_for_what_it_would_ignore() -> None:
    decode, prefill = ScriptedDecodeNode(token=letters, stock=True), ScriptedPrefillNode()
    async with routing(prefill, decode) as router:
        error = await router.error_of(make(3, sampling=Sampling(logprobs=1)))
        assert (error.status, error.code, error.param) == (400, "unsupported_parameter", "logprobs")
        assert prefill.calls == []
        assert await router.answer(make(3, "dead")) == ("abc", 3, Finished("length"))


async def test_a_stock_nodes_late_refusal() -> None:
    faults = [Answer(429, b'{"error":"busy","current_rid":"other"}', {"retry-after": "4"})]

    async def busy(_order: dict[str, Any]) -> Answer | None:
        return faults.pop() if faults else None

    decode = ScriptedDecodeNode(stock=True, hooks={"/pd/decode": busy})
    async with routing(ScriptedPrefillNode(), decode) as router:
        error = await router.error_of(make(3))
        assert (error.status, error.retry_after) == (429, 4)
