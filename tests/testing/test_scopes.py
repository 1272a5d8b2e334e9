from __future__ import annotations

import pytest

from tilert_stream.events import Finished, Limits, PromptUsage, TokenBatch
from tilert_stream.lifecycle import State
from tilert_stream.testing import make_request, make_scope


def test_a_request_and_what_overrides_it() -> None:
    request = make_request()
    assert (request.id, request.prompt_ids, request.limits) == ("feed", (1, 2, 3), Limits(64))
    other = make_request((9,), id="beef", stop=("x",), limits=Limits(2))
    assert (other.id, other.prompt_ids, other.stop) == ("beef", (9,), ("x",))
    assert other.limits == Limits(2)
    with pytest.raises(TypeError, match="temperature"):
        make_request(temperature=1)


def test_a_scope_outside_of_any_event_loop() -> None:
    returned: list[str] = []
    with make_scope(make_request((1, 2))) as scope:
        assert scope.usage == PromptUsage(2)
        assert scope.lifecycle.state is State.QUEUED
        assert scope.mailbox.put(TokenBatch((1,)), Finished("stop"))
        scope.lease.hold("slot", returned.append)
    assert returned == ["test over"]


def test_a_failing_test_gives_everything_back_too() -> None:
    returned: list[str] = []

    def fail() -> None:
        with make_scope() as scope:
            scope.lease.hold("slot", returned.append)
            raise AssertionError("the test's own")

    with pytest.raises(AssertionError, match="the test's own"):
        fail()
    assert returned == ["test over"]
