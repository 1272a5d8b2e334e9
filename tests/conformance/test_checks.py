"""Our own server passes; a server with one fault fails the check that is there for it."""

from __future__ import annotations

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from tests.conformance.faults import FAULTS, Fault
from tests.conformance.spoiling import Asked, Leaky, OneReader, Reply, Spoiled, read
from tilert_stream.conformance import CHECKS, Settings, Severity, Verdict, check_app, select
from tilert_stream.conformance.checks.sse import judge_first_chunk
from tilert_stream.conformance.exchange import Exchange, Read, Request
from tilert_stream.conformance.judging import Failed
from tilert_stream.errors import ConfigError
from tilert_stream.telemetry.telemetry import Telemetry
from tilert_stream.testing.apps import ScriptedApp

SETTINGS = Settings(timeout=20)
KEY = "secret"
LEAVING = ("disconnect.stream", "disconnect.reset", "disconnect.before-answer")
APART = (*LEAVING, "disconnect.half-body", "disconnect.neighbour", "sse.first-chunk")
"""Checks whose faults are not in the list."""


async def test_our_own_server_breaks_no_must() -> None:
    app = ScriptedApp(api_keys=(KEY,), telemetry=Telemetry("echo"))
    report = await check_app(app, api_key=KEY, settings=SETTINGS)
    assert not [f"{r.check.id}: {r.reason}\n{r.evidence}" for r in report.broken()]
    musts = [r for r in report.results if r.check.severity is Severity.MUST]
    assert not [r.check.id for r in musts if r.verdict is Verdict.SKIP]
    passed = {r.check.id for r in report.results if r.verdict is Verdict.PASS}
    assert {"disconnect.gauge", "headers.request-id", "models.retrieve"} <= passed
    assert len(report.results) == len(CHECKS)
    assert report.model == "echo"


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.check for fault in FAULTS])
async def test_a_fault_is_found(fault: Fault) -> None:
    after = fault.making() if fault.making else fault.after
    app = Spoiled(ScriptedApp(api_keys=(KEY,)), fault.before, after)
    report = await check_app(app, api_key=KEY, only=(fault.check,), settings=SETTINGS)
    result = report.of(fault.check)
    assert result.verdict is Verdict.FAIL, result
    assert result.reason
    assert KEY not in result.evidence


async def test_a_server_that_is_only_wrapped_breaks_no_must() -> None:
    app = Spoiled(ScriptedApp())
    report = await check_app(app, skip=("disconnect",), settings=SETTINGS)
    assert not [f"{r.check.id}: {r.reason}\n{r.evidence}" for r in report.broken()]


def test_every_check_has_a_fault() -> None:
    assert {check.id for check in CHECKS} == {fault.check for fault in FAULTS} | set(APART)


@pytest.mark.parametrize("check", LEAVING)
async def test_slots_that_are_not_given_back_are_found(check: str) -> None:
    report = await check_app(Leaky(ScriptedApp()), only=(check,), settings=SETTINGS)
    assert report.of(check).verdict is Verdict.FAIL
    assert "429" in report.of(check).reason


async def test_a_request_that_came_by_half_and_holds_a_slot_is_found() -> None:
    check = "disconnect.half-body"
    report = await check_app(Leaky(ScriptedApp()), only=(check,), settings=SETTINGS)
    assert report.of(check).verdict is Verdict.FAIL


async def test_a_reader_who_stops_all_others_is_found() -> None:
    check = "disconnect.neighbour"
    report = await check_app(OneReader(ScriptedApp()), only=(check,), settings=SETTINGS)
    assert report.of(check).verdict is Verdict.FAIL


async def test_a_gauge_that_goes_back_is_fine() -> None:
    def gauge(asked: Asked, reply: Reply) -> None:
        if asked.path == "/metrics":
            reply.status, reply.body = 200, b"x_requests_running 1\n"

    app = Spoiled(ScriptedApp(), after=gauge)
    report = await check_app(app, only=("disconnect.gauge",), settings=SETTINGS)
    assert report.of("disconnect.gauge").verdict is Verdict.PASS


def _streamed(at: float) -> Exchange:
    first = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
    text = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
    reads = [Read(0.9, len(first)), Read(at, len(first + text))]
    request = Request(path="/v1/chat/completions")
    return Exchange(request, 200, body=bytearray(first + text), reads=reads)


def test_met_01_a_chunk_long_before_the_first_text_is_found() -> None:
    judge_first_chunk(_streamed(0.905))
    with pytest.raises(Failed, match="1300 ms before the first text"):
        judge_first_chunk(_streamed(2.2))


async def test_a_server_that_answers_nothing_fails_and_the_rest_is_skipped() -> None:
    app: ASGIApp = Spoiled(ScriptedApp(), after=lambda _asked, reply: setattr(reply, "status", 500))
    report = await check_app(app, settings=SETTINGS)
    assert report.of("answers.either") in report.broken()
    assert report.of("answers.chat") in report.broken()
    assert report.of("sse.framing").verdict is Verdict.SKIP
    assert "chat fails: 500" in report.of("sse.framing").reason


async def test_a_model_without_a_chat_template_is_asked_for_completions() -> None:
    def no_template(asked: Asked, reply: Reply) -> None:
        if asked.path == "/v1/chat/completions":
            reply.status = 400
            reply.body = b'{"error":{"message":"the model has no chat template","type":"x"}}'

    report = await check_app(
        Spoiled(ScriptedApp(), after=no_template), skip=("errors", "disconnect"), settings=SETTINGS
    )
    assert not report.broken()
    assert report.of("answers.chat").verdict is Verdict.SKIP
    assert "no chat template" in report.of("answers.chat").reason
    assert report.of("sse.framing").verdict is Verdict.PASS
    assert report.of("stop.stream").verdict is Verdict.PASS


def test_checks_are_chosen_by_id_and_by_theme() -> None:
    assert [check.id for check in select(("sse.done",))] == ["sse.done"]
    assert {check.id.partition(".")[0] for check in select(("stop", "usage"))} == {"stop", "usage"}
    assert len(select(skip=("sse.done",))) == len(CHECKS) - 1
    with pytest.raises(ConfigError, match=r"no check or theme 'sse\.dome'"):
        select(("sse.dome",))


async def test_a_check_is_bounded_in_requests() -> None:
    bound = Settings(requests=3)
    report = await check_app(ScriptedApp(), only=("usage.counts",), settings=bound)
    assert "more than 3 requests" in report.of("usage.counts").reason


async def _never_ends(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers plainly at once; of a stream it sends one event and no more."""
    if scope["type"] != "http":
        return
    asked = await read(scope, receive)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    if asked is None or not asked.stream:
        await send({"type": "http.response.body", "body": b"{}"})
        return
    await send({"type": "http.response.body", "body": b"data: {}\n\n", "more_body": True})
    while (await receive())["type"] != "http.disconnect":
        pass


@pytest.mark.parametrize("check", ["sse.done", "headers.keep-alive"])
async def test_a_stream_that_never_ends_is_a_failure_within_the_time_limit(check: str) -> None:
    report = await check_app(_never_ends, only=(check,), settings=Settings(timeout=1))
    assert report.of(check).verdict is Verdict.FAIL
    assert "not complete within the time limit" in report.of(check).reason


async def test_what_came_before_a_time_out_is_the_evidence() -> None:
    report = await check_app(_never_ends, only=("sse.done",), settings=Settings(timeout=1))
    assert "< data: {}" in report.of("sse.done").evidence
