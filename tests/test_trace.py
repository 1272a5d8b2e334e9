from __future__ import annotations

import time

import pytest

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
