"""``/metrics``, the request log and the timeline beside answers, through the whole app."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from typing import Any

import anyio
import orjson
import pytest

from tests.cases.asking import ByteApp, Exchange, batches, exchange, says
from tests.telemetry.scraped import Samples, samples
from tilert_engine.scripted import Script
from tilert_stream.abc import Receive, Send
from tilert_stream.errors import EngineFault
from tilert_stream.events import TextDelta
from tilert_stream.telemetry.request_log import RequestLog
from tilert_stream.telemetry.telemetry import Telemetry
from tilert_stream.testing import Gate, make_request

PARTS = ["queue", "prefill", "first_token", "kv_import", "decode", "total"]


@dataclass
class Watched:
    """An app, with what it tells of its requests."""

    script: Script = field(default_factory=Script)
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    lines: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    def __post_init__(self) -> None:
        log = RequestLog(lambda line: self.lines.append(orjson.loads(line)))
        self.app = ByteApp(
            self.script, telemetry=Telemetry("byte", log=log, vllm=True), **self.options
        )

    async def ask(self, headers: dict[str, str] | None = None, **fields: Any) -> Exchange:
        asked = exchange(self.app, fields, stream=fields.get("stream", False))
        asked.headers += [(k.encode(), v.encode()) for k, v in (headers or {}).items()]
        await asked.run()
        return asked

    async def scrape(self) -> Samples:
        asked = Exchange(self.app, [b""], "/metrics", "GET")
        await asked.run()
        assert asked.status == 200
        headers = dict(asked.sent[0]["headers"])
        assert headers[b"content-type"].startswith(b"text/plain; version=")
        prefix = "tilert_stream_"
        found = samples(asked.content)
        return {k.removeprefix(prefix): v for k, v in found.items() if k.startswith(prefix) and v}


def answering(*sizes: int) -> Script:
    return Script(says(b"abcdefgh"), chain=batches(*sizes))


@pytest.mark.parametrize("stream", [True, False])
async def test_a_request_is_counted_and_logged(*, stream: bool) -> None:
    watched = Watched(answering(3, 4))
    async with watched.app.lifespan():
        answer = await watched.ask(stream=stream)
        found = await watched.scrape()
    # Eight bytes, and the token that ends them.
    counts = {name: value for name, value in found.items() if "_bucket" not in name}
    times = {name for name in counts if name.endswith("_seconds_sum")}
    assert {name: value for name, value in counts.items() if name not in times} == {
        "time_to_first_token_seconds_count": 1,
        "inter_token_latency_seconds_count": 8,
        "time_per_output_token_seconds_count": 1,
        "request_duration_seconds_count": 1,
        "queue_seconds_count": 1,
        "prefill_seconds_count": 1,
        "kv_handoff_seconds_count": 1,
        "decode_seconds_count": 1,
        "request_prompt_tokens_count": 1,
        "request_prompt_tokens_sum": 3,
        "request_generation_tokens_count": 1,
        "request_generation_tokens_sum": 9,
        "prompt_tokens_total": 3,
        "generation_tokens_total": 9,
        "requests_finished_total{finish_reason=stop}": 1,
    }
    first, decode, total = (
        counts[f"{name}_seconds_sum"]
        for name in ("time_to_first_token", "decode", "request_duration")
    )
    assert first + decode <= total
    assert counts["inter_token_latency_seconds_sum"] == decode
    (line,) = watched.lines
    assert list(line.pop("timeline_ms")) == PARTS
    assert line.pop("time").endswith("+00:00")
    identity = answer.chunks[0]["id"] if stream else answer.json["id"]
    assert line == {
        "id": identity.removeprefix("chatcmpl-"),
        "client_id": None,
        "endpoint": "/v1/chat/completions",
        "model": "byte",
        "stream": stream,
        "status": 200,
        "error": None,
        "phase": "decoding",
        "finish_reason": "stop",
        "stop_reason": None,
        "prompt_tokens": 3,
        "cached_tokens": None,
        "completion_tokens": 9,
    }


async def test_tokens_behind_a_stop_string_are_not_the_answers() -> None:
    watched = Watched(answering(7))
    async with watched.app.lifespan():
        answer = await watched.ask(stop="d")
        found = await watched.scrape()
    usage = answer.json["usage"]["completion_tokens"]
    assert usage == 4
    assert found["generation_tokens_total"] == usage
    assert watched.lines[0]["completion_tokens"] == usage
    assert watched.lines[0]["stop_reason"] == "d"


class Shout:
    async def run(self, receive: Receive[TextDelta], send: Send[TextDelta]) -> None:
        async for delta in receive:
            await send(replace(delta, text=delta.text.upper()))


async def test_a_stage_that_awaits_changes_nothing_of_what_is_counted() -> None:
    watched = Watched(answering(3, 4))
    service = watched.app.service
    service.pipeline = service.pipeline.insert(Shout(), where="after", anchor="detokenize")
    async with watched.app.lifespan():
        answer = await watched.ask()
        found = await watched.scrape()
    assert answer.json["choices"][0]["message"]["content"] == "ABCDEFGH"
    assert found["inter_token_latency_seconds_count"] == 8
    assert found["generation_tokens_total"] == 9


async def test_without_http_a_request_is_counted_and_logged_too() -> None:
    watched = Watched(answering(8))
    async with watched.app.lifespan():
        pieces = [delta.text async for delta in watched.app.service.stream(make_request())]
        found = await watched.scrape()
    assert "".join(pieces).startswith("abcdefgh")
    assert found["time_to_first_token_seconds_count"] == 1
    (line,) = watched.lines
    assert (line["endpoint"], line["status"], line["id"]) == (None, None, "feed")


async def test_requests_are_seen_while_they_run() -> None:
    with Gate() as gate:
        watched = Watched(
            Script(before_chunk=gate.pass_through), options={"slots": 1, "queue_timeout": 60}
        )
        asked = [exchange(watched.app, {"max_tokens": 2}) for _ in range(2)]
        async with watched.app.lifespan(), asked[0].running(gate), asked[1].running(gate):
            await gate.arrival()
            await anyio.wait_all_tasks_blocked()
            found = await watched.scrape()
            assert found == {"requests_running": 1, "requests_waiting": 1}
            gate.open()
        async with watched.app.lifespan():
            found = await watched.scrape()
    assert "requests_running" not in found
    assert found["requests_finished_total{finish_reason=length}"] == 2


async def test_a_client_that_leaves_is_a_499_in_its_phase() -> None:
    with Gate() as gate:
        watched = Watched(Script(before_chunk=gate.pass_through))
        asked = exchange(watched.app, {})
        async with watched.app.lifespan():
            async with asked.running(gate):
                await gate.arrival()
                asked.leave()
            gate.open()
            found = await watched.scrape()
    assert found["requests_cancelled_total{phase=prefilling}"] == 1
    assert "request_errors_total" not in " ".join(found)
    (line,) = watched.lines
    assert (line["status"], line["error"], line["phase"]) == (499, "cancelled", "prefilling")


async def test_a_failure_is_counted_by_its_code() -> None:
    def fails(_turn: int) -> None:
        raise EngineFault("the engine failed here")

    watched = Watched(Script(before_chain=fails))
    async with watched.app.lifespan():
        plain = await watched.ask()
        streamed = await watched.ask(stream=True)
        found = await watched.scrape()
    assert (plain.status, streamed.status) == (500, 200)
    assert found["request_errors_total{code=engine_fault}"] == 2
    assert [(line["status"], line["error"]) for line in watched.lines] == [
        (500, "engine_fault"),
        (200, "engine_fault"),
    ]


@pytest.mark.parametrize(
    ("options", "fields", "code", "status"),
    [
        ({}, {"max_tokens": "five"}, "invalid_value", 400),
        ({}, {"model": "unknown"}, "model_not_found", 404),
        ({"api_keys": ("sk-1",)}, {}, "invalid_api_key", 401),
        ({"max_body_bytes": 10}, {}, "body_too_large", 413),
    ],
)
async def test_a_refusal_is_counted_and_its_line_has_the_answers_id(
    options: dict[str, Any], fields: dict[str, Any], code: str, status: int
) -> None:
    watched = Watched(options=options)
    async with watched.app.lifespan():
        refused = await watched.ask(**fields)
        found = await watched.scrape()
    assert refused.status == status
    assert found == {f"request_errors_total{{code={code}}}": 1}
    (line,) = watched.lines
    assert line["id"] == dict(refused.sent[0]["headers"])[b"x-request-id"].decode()
    assert (line["status"], line["error"]) == (status, code)


@pytest.mark.parametrize("stream", [True, False])
async def test_kv_11_a_clients_own_id_is_echoed_and_logged_beside_ours(*, stream: bool) -> None:
    watched = Watched()
    async with watched.app.lifespan():
        answer = await watched.ask({"x-request-id": "mine-1 \r\n<b>"}, max_tokens=2, stream=stream)
    assert dict(answer.sent[0]["headers"])[b"x-request-id"] == b"mine-1b"
    (line,) = watched.lines
    assert line["client_id"] == "mine-1b"
    assert line["id"] != "mine-1b"


async def test_a_clients_own_id_is_echoed_by_a_refusal() -> None:
    watched = Watched()
    async with watched.app.lifespan():
        answer = await watched.ask({"x-request-id": "mine-2"}, max_tokens=-1)
    assert answer.status == 400
    assert dict(answer.sent[0]["headers"])[b"x-request-id"] == b"mine-2"


async def test_kv_11_a_clients_id_is_cut() -> None:
    watched = Watched()
    async with watched.app.lifespan():
        answer = await watched.ask({"x-request-id": "é" + "x" * 200}, max_tokens=2)
    assert dict(answer.sent[0]["headers"])[b"x-request-id"] == b"x" * 128


# --- the timeline beside an answer -----------------------------------------------------------


async def test_an_answer_says_nothing_of_its_times_unasked() -> None:
    watched = Watched()
    async with watched.app.lifespan():
        plain = await watched.ask(max_tokens=2)
        streamed = await watched.ask(max_tokens=2, stream=True)
    assert "pd_timing_ms" not in plain.json
    assert b"pd_timing_ms" not in streamed.content
    assert b"server-timing" not in dict(streamed.sent[0]["headers"])


async def test_a_plain_answer_has_a_server_timing_header() -> None:
    watched = Watched()
    async with watched.app.lifespan():
        plain = await watched.ask(max_tokens=2)
    spent = dict(plain.sent[0]["headers"])[b"server-timing"].decode()
    assert [part.split(";dur=")[0] for part in spent.split(", ")] == PARTS
    assert all(float(part.split(";dur=")[1]) >= 0 for part in spent.split(", "))


async def test_a_plain_answer_says_its_times_when_asked() -> None:
    watched = Watched()
    async with watched.app.lifespan():
        plain = await watched.ask({"x-timing": "1"}, max_tokens=2)
    assert list(plain.json["pd_timing_ms"]) == PARTS


async def test_a_stream_says_them_on_the_usage_chunk_when_asked() -> None:
    watched = Watched()
    async with watched.app.lifespan():
        streamed = await watched.ask({"x-timing": "1"}, max_tokens=3, stream=True)
    *others, last = streamed.chunks
    assert last["usage"]["completion_tokens"] == 3
    assert list(last["pd_timing_ms"]) == PARTS
    assert not any("pd_timing_ms" in chunk for chunk in others)


async def test_a_stream_without_usage_says_them_on_its_finish_chunk() -> None:
    watched = Watched()
    async with watched.app.lifespan():
        streamed = await watched.ask(
            {"x-timing": "1"}, max_tokens=3, stream=True, stream_options=None
        )
    *others, last = streamed.chunks
    assert last["choices"][0]["finish_reason"] == "length"
    assert list(last["pd_timing_ms"]) == PARTS
    assert not any("pd_timing_ms" in chunk for chunk in others)


# --- where it is off -------------------------------------------------------------------------


async def test_without_telemetry_there_is_no_such_path() -> None:
    app = ByteApp()
    async with app.lifespan():
        asked = Exchange(app, [b""], "/metrics", "GET")
        await asked.run()
    assert (asked.status, asked.json["error"]["code"]) == (404, "not_found")


async def test_without_the_library_the_answer_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    watched = Watched()
    async with watched.app.lifespan():
        answer = await watched.ask(max_tokens=2)
        asked = Exchange(watched.app, [b""], "/metrics", "GET")
        await asked.run()
    assert answer.status == 200
    assert (asked.status, asked.json["error"]["code"]) == (404, "not_found")
    assert "pip install 'tilert-stream[metrics]'" in asked.json["error"]["message"]


async def test_an_observer_that_fails_ends_no_answer(caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched()

    def full(_line: bytes) -> None:
        raise OSError(28, "No space left on device")

    watched.app.service.observers.add(RequestLog(full))
    async with watched.app.lifespan():
        first = await watched.ask(max_tokens=2)
        second = await watched.ask(max_tokens=2, stream=True)
        found = await watched.scrape()
    assert (first.status, second.complete) == (200, True)
    assert found["requests_finished_total{finish_reason=length}"] == 2
    assert [r.getMessage() for r in caplog.records if r.exc_info] == [
        "RequestLog failed; it is called on, and this is said once"
    ]
