from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import anyio
import pytest

from tilert_engine.scripted import Script
from tilert_stream.errors import EngineFault
from tilert_stream.model.byte_tokenizer import EOS
from tilert_stream.model.tokenizer import TextTokenizer
from tilert_stream.testing import Gate
from tilert_stream.testing.apps import ScriptedApp

Request = Callable[..., Any]

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "abc"}], "max_tokens": 5}
STREAM: dict[str, Any] = CHAT | {"stream": True}


async def test_plain_and_streamed_answers_say_the_same(request_to: Request) -> None:
    app = ScriptedApp()
    async with app.lifespan():
        plain = await request_to(app, body=CHAT).run()
        usage = {"stream_options": {"include_usage": True}}
        streamed = await request_to(app, body=STREAM | usage).run()
    assert plain.status == streamed.status == 200
    assert plain.json["choices"][0]["message"]["content"] == streamed.text == "abcab"
    assert plain.json["choices"][0]["finish_reason"] == "length"
    assert plain.json["usage"] == streamed.events[-1]["usage"]
    assert plain.json["usage"] == {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}
    assert plain.headers["content-length"] == str(len(plain.content))
    assert streamed.content.endswith(b"data: [DONE]\n\n")
    assert plain.complete
    assert streamed.complete


async def test_http_01_a_stream_passes_proxies_and_the_end_is_one_message(
    request_to: Request,
) -> None:
    app = ScriptedApp(Script(chain=lambda _turn: 100))
    async with app.lifespan():
        answer = await request_to(app, body=STREAM).run()
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache, no-transform"
    assert answer.headers["x-accel-buffering"] == "no"
    assert answer.headers["x-request-id"]
    # The last tokens, the finish chunk and [DONE] leave in the message that ends the response.
    assert answer.sent[-1]["body"].count(b"data: ") >= 3
    assert answer.sent[-1]["body"].endswith(b"data: [DONE]\n\n")


async def test_met_01_nothing_leaves_before_the_first_token(request_to: Request) -> None:
    with Gate() as gate:
        app = ScriptedApp(Script(before_chunk=gate.pass_through))
        exchange = request_to(app, body=STREAM)
        async with app.lifespan(), anyio.create_task_group() as tasks:
            tasks.start_soon(exchange.run)
            await gate.arrival()
            await anyio.wait_all_tasks_blocked()
            assert exchange.sent == []
            gate.open()
            await exchange.first_body.wait()
            first = exchange.events[0]["choices"][0]["delta"]
            assert first == {"role": "assistant", "content": "a"}


async def test_met_05_the_first_token_leaves_before_the_kv_cache_is_imported(
    request_to: Request,
) -> None:
    with Gate() as gate:
        app = ScriptedApp(Script(before_import=gate.pass_through))
        exchange = request_to(app, body=STREAM)
        async with app.lifespan(), anyio.create_task_group() as tasks:
            tasks.start_soon(exchange.run)
            await exchange.first_body.wait()
            await gate.arrival()
            assert exchange.text == "a"
            gate.open()
    assert exchange.text == "abcab"


@pytest.mark.parametrize("n", [1, 2, 3, 16])
@pytest.mark.parametrize("stream", [True, False])
async def test_met_12_exactly_n_tokens(request_to: Request, n: int, *, stream: bool) -> None:
    app = ScriptedApp(Script(chain=lambda _turn: 4))
    options = {"stream_options": {"include_usage": True}} if stream else {}
    async with app.lifespan():
        body = CHAT | {"max_tokens": n, "stream": stream} | options
        answer = await request_to(app, body=body).run()
    text = ("abc" * 6)[:n]
    usage = {"prompt_tokens": 3, "completion_tokens": n, "total_tokens": 3 + n}
    if stream:
        assert answer.text == text
        assert answer.events[-2]["choices"][0]["finish_reason"] == "length"
        assert answer.events[-1]["usage"] == usage
    else:
        assert answer.json["choices"][0]["message"]["content"] == text
        assert answer.json["choices"][0]["finish_reason"] == "length"
        assert answer.json["usage"] == usage


async def test_met_15_one_envelope(request_to: Request) -> None:
    app = ScriptedApp()
    async with app.lifespan():
        options = {"stream_options": {"include_usage": True}}
        answer = await request_to(app, body=STREAM | options).run()
    envelopes = {(e["id"], e["created"], e["model"], e["object"]) for e in answer.events}
    assert len(envelopes) == 1
    assert envelopes.pop()[3] == "chat.completion.chunk"


def _says(*ids: int) -> Callable[[Sequence[int], int], int]:
    return lambda _prompt, index: ids[index]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("ids", "fields", "text", "reason", "count"),
    [
        pytest.param((EOS,), {}, "", "stop", 1, id="eos"),
        pytest.param((65,), {"stop_token_ids": [65]}, "", "stop", 1, id="stop-token-id"),
        pytest.param((65,), {"max_tokens": 1}, "A", "length", 1, id="budget"),
    ],
)
async def test_stp_08_pd_05_pd_07_the_first_token_ends_the_request(
    request_to: Request,
    ids: tuple[int, ...],
    fields: dict[str, Any],
    text: str,
    reason: str,
    count: int,
    *,
    stream: bool,
) -> None:
    def import_is_never_called(_slot: int) -> None:
        raise AssertionError("the decode engine was opened")

    app = ScriptedApp(Script(token=_says(*ids), before_import=import_is_never_called))
    options = {"stream_options": {"include_usage": True}} if stream else {}
    async with app.lifespan():
        answer = await request_to(app, body=CHAT | {"stream": stream} | options | fields).run()
        assert app.service.ledger.counts == {}
    if stream:
        assert answer.text == text
        assert answer.events[-2]["choices"][0]["finish_reason"] == reason
        assert answer.events[-1]["usage"]["completion_tokens"] == count
        # A textless stream says who speaks, then ends.
        assert answer.events[0]["choices"][0]["delta"]["role"] == "assistant"
    else:
        choice = answer.json["choices"][0]
        assert (choice["message"]["content"], choice["finish_reason"]) == (text, reason)
        assert answer.json["usage"]["completion_tokens"] == count


@pytest.mark.parametrize("stream", [True, False])
async def test_stp_08_the_first_token_is_the_stop_string(
    request_to: Request, *, stream: bool
) -> None:
    app = ScriptedApp()
    async with app.lifespan():
        answer = await request_to(app, body=CHAT | {"stream": stream, "stop": ["a"]}).run()
        assert app.service.ledger.counts == {}
    choice = answer.events[-1]["choices"][0] if stream else answer.json["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "a")
    assert (answer.text if stream else choice["message"]["content"]) == ""


async def test_stp_02_a_match_across_the_hand_over_stops_the_engine(request_to: Request) -> None:
    turns: list[int] = []
    with Gate() as gate:

        def third_chain(turn: int) -> None:
            turns.append(turn)
            if turn == 2:
                gate.pass_through(turn)

        app = ScriptedApp(Script(before_chain=third_chain))
        async with app.lifespan():
            # "a" comes from prefill, "b" from decode; the engine is held in a chain meanwhile.
            body = CHAT | {"stop": ["ab"], "max_tokens": 4000}
            answer = await request_to(app, body=body).run()
            assert answer.json["choices"][0]["message"]["content"] == ""
            assert answer.json["choices"][0]["stop_reason"] == "ab"
            assert answer.json["usage"]["completion_tokens"] == 2
            assert app.service.ledger.counts == {}
            gate.open()
    assert len(turns) <= 4
    assert app.decode_engine.busy == {}


async def test_err_02_a_fault_is_no_finish_reason(request_to: Request) -> None:
    def fault(turn: int) -> None:
        if turn == 1:
            raise EngineFault("the cache is full")

    with Gate() as gate:

        def before(turn: int) -> None:
            fault(turn)
            gate.pass_through(turn)

        app = ScriptedApp(Script(before_chain=before))
        exchange = request_to(app, body=STREAM)
        async with app.lifespan(), anyio.create_task_group() as tasks:
            tasks.start_soon(exchange.run)
            await exchange.first_body.wait()
            gate.open()
    assert exchange.status == 200
    assert exchange.text == "ab"
    assert exchange.events[-1] == {
        "error": {
            "message": "the cache is full",
            "type": "server_error",
            "param": None,
            "code": "engine_fault",
        }
    }
    assert b"[DONE]" not in exchange.content
    assert b'"finish_reason":"' not in exchange.content
    assert not exchange.complete, "a failed stream is cut"


async def test_err_05_a_failure_before_the_first_token_is_a_status(request_to: Request) -> None:
    def fault(_chunk: int) -> None:
        raise EngineFault("no memory for this prompt")

    app = ScriptedApp(Script(before_chunk=fault))
    async with app.lifespan():
        for body in (CHAT, STREAM):
            answer = await request_to(app, body=body).run()
            assert answer.status == 500
            assert answer.json["error"]["code"] == "engine_fault"
            assert answer.complete
        assert app.service.ledger.counts == {}


async def test_a_switch_ends_failed_streams_like_complete_ones(request_to: Request) -> None:
    with Gate() as gate:

        def before(turn: int) -> None:
            if turn:
                gate.pass_through(turn)
                raise EngineFault("the cache is full")

        app = ScriptedApp(Script(before_chain=before), done_after_error=True)
        exchange = request_to(app, body=STREAM)
        async with app.lifespan(), anyio.create_task_group() as tasks:
            tasks.start_soon(exchange.run)
            await exchange.first_body.wait()
            gate.open()
    assert exchange.content.endswith(b"data: [DONE]\n\n")
    assert exchange.complete


async def test_a_dead_engine_fails_its_requests_and_readiness(request_to: Request) -> None:
    def die(_chunk: int) -> None:
        raise RuntimeError("device lost")

    app = ScriptedApp(Script(before_chunk=die))
    async with app.lifespan():
        assert (await request_to(app, "/ready").run()).status == 200
        answer = await request_to(app, body=CHAT).run()
        assert answer.status == 503
        assert answer.json["error"]["code"] == "engine_died"
        assert "device lost" not in answer.content.decode()
        assert (await request_to(app, "/ready").run()).status == 503
        again = await request_to(app, body=CHAT).run()
        assert again.status == 503
        died = await app.service.died()
        assert isinstance(died.__cause__, RuntimeError)
        assert app.service.ledger.counts == {}


async def test_dis_14_no_queue_refuses_at_once(request_to: Request) -> None:
    with Gate() as gate:
        app = ScriptedApp(Script(before_chunk=gate.pass_through), slots=1, queue_timeout=0)
        first = request_to(app, body=CHAT)
        async with app.lifespan(), anyio.create_task_group() as tasks:
            tasks.start_soon(first.run)
            await gate.arrival()
            for body in (CHAT, STREAM):
                refused = await request_to(app, body=body).run()
                assert refused.status == 429
                assert refused.json["error"]["code"] == "slots_busy"
                assert int(refused.headers["retry-after"]) >= 1
                assert int(refused.headers["retry-after-ms"]) <= 120_000
            gate.open()
    assert first.status == 200


async def test_dis_14_the_line_is_served_in_order_and_a_gone_waiter_takes_nothing(
    request_to: Request,
) -> None:
    order: list[str] = []
    with Gate() as gate:
        app = ScriptedApp(Script(before_chunk=gate.pass_through), slots=1)
        exchanges = {name: request_to(app, body=CHAT) for name in "abcd"}
        async with app.lifespan(), anyio.create_task_group() as tasks:

            async def run(name: str) -> None:
                await exchanges[name].run()
                order.append(name)

            for name in "abcd":
                tasks.start_soon(run, name)
                await anyio.wait_all_tasks_blocked()
            exchanges["b"].leave()
            await anyio.wait_all_tasks_blocked()
            assert order == ["b"]
            gate.open()
    assert order == ["b", "a", "c", "d"]
    assert exchanges["b"].sent == []
    assert app.service.ledger.counts == {}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("place", ["before_chunk", "before_import", "before_chain"])
async def test_dis_02_leaving_at_every_place_gives_everything_back(
    request_to: Request, place: str, *, stream: bool
) -> None:
    with Gate() as gate:
        hooks: dict[str, Any] = {place: gate.pass_through}
        app = ScriptedApp(Script(**hooks), slots=1)
        async with app.lifespan(), anyio.create_task_group() as tasks:
            exchange = request_to(app, body=CHAT | {"stream": stream, "max_tokens": 4000})
            tasks.start_soon(exchange.run)
            await gate.arrival()
            exchange.leave()
            await anyio.wait_all_tasks_blocked()
            assert app.service.ledger.counts == {}
            gate.open()
            # The only slot serves the next one.
            following = await request_to(app, body=CHAT).run()
            assert following.status == 200
    assert app.decode_engine.busy == {}


async def test_requests_need_the_lifespan(request_to: Request) -> None:
    app = ScriptedApp()
    answer = await request_to(app, body=CHAT).run()
    assert answer.status == 503
    assert "app.lifespan" in answer.json["error"]["message"]


async def test_paths_and_methods(request_to: Request) -> None:
    app = ScriptedApp()
    async with app.lifespan():
        models = await request_to(app, "/v1/models").run()
        assert [model["id"] for model in models.json["data"]] == ["echo"]
        assert (await request_to(app, "/health").run()).json == {"status": "ok"}
        assert "version" in (await request_to(app, "/version").run()).json
        missing = await request_to(app, "/v1/nothing").run()
        assert (missing.status, missing.json["error"]["code"]) == (404, "not_found")
        wrong = await request_to(app, "/v1/chat/completions").run()
        assert (wrong.status, wrong.headers["allow"]) == (405, "POST")
        head = await request_to(app, "/health", method="HEAD").run()
        assert head.status == 200
        app.service.drain()
        assert (await request_to(app, "/ready").run()).status == 503
        assert (await request_to(app, "/health").run()).status == 200


async def test_an_error_repeats_little_of_a_long_path(request_to: Request) -> None:
    app = ScriptedApp()
    async with app.lifespan():
        missing = await request_to(app, "/" + "a" * 60_000).run()
        assert (missing.status, len(missing.json["error"]["message"])) == (404, 215)
        wrong = await request_to(app, "/health", method="A" * 60_000).run()
        assert wrong.status == 405
        assert "AAA… is not allowed here; use GET, HEAD" in wrong.json["error"]["message"]
        assert len(wrong.json["error"]["message"]) < 300


async def test_pd_25_keys(request_to: Request) -> None:
    app = ScriptedApp(api_keys=["sk-one", "sk-two"])
    async with app.lifespan():
        for headers in ({}, {"authorization": "Bearer sk-thr"}, {"authorization": "sk-one"}):
            answer = await request_to(app, body=CHAT, headers=headers).run()
            assert (answer.status, answer.json["error"]["code"]) == (401, "invalid_api_key")
            assert "sk-" not in answer.content.decode()
        for key in ("sk-one", "sk-two"):
            headers = {"authorization": f"Bearer {key}"}
            assert (await request_to(app, body=CHAT, headers=headers).run()).status == 200
        assert (await request_to(app, "/health").run()).status == 200
        assert (await request_to(app, "/v1/models").run()).status == 401


async def test_http_09_a_body_over_the_limit_is_refused(request_to: Request) -> None:
    app = ScriptedApp(max_body_bytes=1000)
    async with app.lifespan():
        declared = request_to(app, body=CHAT, headers={"content-length": "1001"})
        answer = await declared.run()
        assert (answer.status, answer.json["error"]["code"]) == (413, "body_too_large")
        assert declared.body, "refused before any of it was read"
        counted = await request_to(app, body=b"x" * 1001).run()
        assert counted.status == 413


async def test_err_09_bad_requests_harm_nobody(request_to: Request) -> None:
    app = ScriptedApp(max_seq_len=64, slots=1)
    long = {"messages": [{"role": "user", "content": "x" * 100}]}
    async with app.lifespan():
        for _ in range(20):
            answer = await request_to(app, body=long).run()
            assert answer.status == 400
            assert answer.json["error"]["code"] == "context_length_exceeded"
        assert (await request_to(app, body=CHAT).run()).status == 200


async def test_a_long_body_is_parsed_beside_the_event_loop(
    request_to: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = ScriptedApp(max_seq_len=100_000)
    threads: list[int] = []
    encode = TextTokenizer.encode

    def watched(self: TextTokenizer, text: str, *, add_special_tokens: bool) -> tuple[int, ...]:
        threads.append(threading.get_ident())
        return encode(self, text, add_special_tokens=add_special_tokens)

    monkeypatch.setattr(TextTokenizer, "encode", watched)
    async with app.lifespan():
        for size in (100, 40_000):
            body = {"messages": [{"role": "user", "content": "x" * size}], "max_tokens": 1}
            assert (await request_to(app, body=body).run()).status == 200
    assert threads[0] == threading.get_ident()
    assert threads[1] != threading.get_ident()


@pytest.mark.parametrize("content", ["", "Four."])
async def test_met_02_thinking_is_streamed_as_it_is_produced_and_counted(
    request_to: Request, content: str
) -> None:
    # Without an output parser a model's thinking is text like any other: the first token of any
    # kind is the first chunk, and every token counts.
    thinking = "<think>" + "2 and 2 ... " * 16 + "</think>"
    said = (thinking + content).encode()
    turns = 0
    with Gate() as gate:

        def hold_the_second_chain(turn: int) -> None:
            nonlocal turns
            turns = turn
            if turn == 1:
                gate.pass_through(turn)

        app = ScriptedApp(Script(token=_says(*said, EOS), before_chain=hold_the_second_chain))
        usage = {"max_tokens": 400, "stream_options": {"include_usage": True}}
        exchange = request_to(app, body=STREAM | usage)
        async with app.lifespan(), anyio.create_task_group() as tasks:
            tasks.start_soon(exchange.run)
            await gate.arrival()
            await anyio.wait_all_tasks_blocked()
            assert exchange.text == "<t", "what exists has left while the model still thinks"
            gate.open()
    assert exchange.text == thinking + content
    assert exchange.events[-1]["usage"]["completion_tokens"] == len(said) + 1
    assert turns > 1
