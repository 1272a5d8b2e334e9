from __future__ import annotations

import time
from contextlib import aclosing
from typing import Any

import pytest

from tilert_stream.errors import Cancelled, InvalidRequest
from tilert_stream.events import Limits
from tilert_stream.testing import make_request
from tilert_stream.testing.apps import ScriptedApp
from tilert_stream.trace import Span, TraceEvent


def test_a_block_that_ends_well() -> None:
    events: list[TraceEvent] = []
    before = time.perf_counter()
    with Span(events.append, "a1", "prefill"):
        assert [event.phase for event in events] == ["started"]
    after = time.perf_counter()
    assert [(e.request_id, e.name, e.phase, e.error) for e in events] == [
        ("a1", "prefill", "started", None),
        ("a1", "prefill", "complete", None),
    ]
    assert before <= events[0].at <= events[1].at <= after


def test_a_block_that_raises_is_reported_and_still_raises() -> None:
    events: list[TraceEvent] = []
    error = ValueError("broken")
    with pytest.raises(ValueError, match="broken"), Span(events.append, "a1", "prefill"):
        raise error
    assert [event.phase for event in events] == ["started", "failed"]
    assert events[1].error is error


def test_without_a_hook_nothing_happens() -> None:
    with Span(None, "a1", "prefill"):
        pass
    with pytest.raises(ValueError, match="broken"), Span(None, "a1", "prefill"):
        raise ValueError("broken")


def test_a_hook_that_raises_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def broken(_event: TraceEvent) -> None:
        raise RuntimeError("the collector is down")

    with Span(broken, "a1", "prefill"):
        pass
    assert "the collector is down" in caplog.text


async def test_the_timeline_of_a_request() -> None:
    events: list[TraceEvent] = []
    app = ScriptedApp(trace=events.append)
    request = make_request((1, 2), limits=Limits(3))
    async with app.lifespan():
        assert [delta.text async for delta in app.service.stream(request)]
    assert [(event.name, event.phase) for event in events] == [
        ("request", "started"),
        *(
            (step, phase)
            for step in ("reserve", "prefill", "import_kv", "decode")
            for phase in ("started", "complete")
        ),
        ("request", "complete"),
    ]
    times = [event.at for event in events]
    assert times == sorted(times)


async def test_a_request_that_is_left_is_a_failed_one() -> None:
    events: list[TraceEvent] = []
    app = ScriptedApp(trace=events.append)
    request = make_request((1, 2), limits=Limits(300))
    async with app.lifespan(), aclosing(app.service.stream(request)) as deltas:
        await anext(deltas)
    last = [event for event in events if event.name == "request"][-1]
    assert last.phase == "failed"
    assert isinstance(last.error, Cancelled)


@pytest.mark.parametrize("fields", [{"prompt_ids": ()}, {"limits": Limits(0)}])
async def test_a_request_of_nothing_is_refused(fields: dict[str, Any]) -> None:
    app = ScriptedApp()
    async with app.lifespan():
        with pytest.raises(InvalidRequest):
            await anext(app.service.stream(make_request(**fields)))
        assert app.service.ledger.counts == {}
