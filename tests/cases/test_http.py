"""What proxies and browsers ask of the app: signs of life, and leave to read."""

from __future__ import annotations

import pytest

from tests.cases.asking import ByteApp, Exchange, exchange
from tilert_engine.scripted import Script
from tilert_stream.asgi.wakes import HEARTBEAT
from tilert_stream.errors import EngineFault
from tilert_stream.testing import Gate

PING = b": still here\n\n"
ORIGIN = (b"origin", b"https://chat.example")


async def beats(asked: Exchange, count: int) -> None:
    """Wait until so many heartbeats have been sent."""
    while asked.content.count(PING) < count:
        await asked.grown()


async def test_http_05_a_long_prefill_is_not_silent() -> None:
    """Comments alone, as long as it lasts; then the answer as ever."""
    assert HEARTBEAT == PING
    with Gate() as gate:
        app = ByteApp(Script(before_chunk=gate.pass_through), heartbeat=0.01)
        asked = exchange(app, {"max_tokens": 2}, stream=True)
        async with app.lifespan(), asked.running(gate):
            await gate.arrival()
            await beats(asked, 3)
            assert asked.content.replace(PING, b"") == b""
            gate.open()
    assert (asked.status, asked.complete) == (200, True)
    events = asked.content.replace(PING, b"")
    assert events.startswith(b"data: {")
    assert events.endswith(b"data: [DONE]\n\n")
    assert b"retry:" not in asked.content
    assert b"id:" not in asked.content.replace(b'"id":', b"")


async def test_http_05_a_failure_after_a_heartbeat_is_an_error_event_and_a_cut() -> None:
    with Gate() as gate:

        def fail(number: int) -> None:
            gate.pass_through(number)
            raise EngineFault("by script")

        app = ByteApp(Script(before_chunk=fail), heartbeat=0.01)
        asked = exchange(app, {"max_tokens": 2}, stream=True)
        async with app.lifespan(), asked.running(gate):
            await gate.arrival()
            await beats(asked, 1)
            gate.open()
    assert (asked.status, asked.complete) == (200, False)
    last = asked.content.replace(PING, b"")
    assert last.startswith(b'data: {"error":')
    assert b'"engine_fault"' in last
    assert b"[DONE]" not in last


async def test_http_05_a_request_in_the_queue_gets_no_sign_but_its_status() -> None:
    with Gate() as gate:
        app = ByteApp(Script(before_chunk=gate.pass_through), queue_timeout=0.05, heartbeat=0.01)
        first = exchange(app, {"max_tokens": 1}, stream=True)
        async with app.lifespan(), first.running(gate):
            await gate.arrival()
            second = exchange(app, {"max_tokens": 1}, stream=True)
            await second.run()
            assert (second.status, second.complete) == (429, True)
            gate.open()


async def test_http_05_plain_answers_and_streams_without_the_option_have_no_comment() -> None:
    slow = Script(prefill_time=0.05)
    for app, stream in ((ByteApp(slow, heartbeat=0.01), False), (ByteApp(slow), True)):
        asked = exchange(app, {"max_tokens": 2}, stream=stream)
        async with app.lifespan():
            await asked.run()
        assert asked.status == 200
        assert PING not in asked.content


def header(asked: Exchange, name: bytes) -> bytes | None:
    return dict(asked.sent[0]["headers"]).get(name)


@pytest.mark.parametrize("origins", [("https://chat.example",), ("*",)])
async def test_http_07_a_browser_may_ask_without_a_key(origins: tuple[str, ...]) -> None:
    app = ByteApp(api_keys=("sk-one",), cors_origins=origins)
    preflight = exchange(app, {})
    preflight.method = "OPTIONS"
    preflight.headers = [
        ORIGIN,
        (b"access-control-request-method", b"POST"),
        (b"access-control-request-headers", b"authorization"),
    ]
    async with app.lifespan():
        await preflight.run()
        assert preflight.status in (200, 204)
        assert header(preflight, b"access-control-allow-origin") in (ORIGIN[1], b"*")
        assert b"authorization" in (header(preflight, b"access-control-allow-headers") or b"")
        for key, status in ((b"", 401), (b"Bearer sk-one", 200)):
            asked = exchange(app, {"max_tokens": 2}, stream=True)
            asked.headers = [ORIGIN, (b"authorization", key)]
            await asked.run()
            assert asked.status == status
            assert header(asked, b"access-control-allow-origin") in (ORIGIN[1], b"*")
            assert b"x-request-id" in (header(asked, b"access-control-expose-headers") or b"")


async def test_http_07_other_origins_and_servers_without_the_option_give_no_leave() -> None:
    for app, origin in (
        (ByteApp(cors_origins=("https://chat.example",)), b"https://evil.example"),
        (ByteApp(), ORIGIN[1]),
    ):
        asked = exchange(app, {"max_tokens": 1})
        asked.headers = [(b"origin", origin)]
        async with app.lifespan():
            await asked.run()
        assert header(asked, b"access-control-allow-origin") is None
