"""Requests and scopes for tests of a single stage."""

from __future__ import annotations

import pytest

from tilert_stream.events import Finished, Limits, PromptUsage, TokenBatch
from tilert_stream.lifecycle import State
from tilert_stream.testing import make_request, make_scope


def test_a_request_has_room_and_takes_fields() -> None:
    assert make_request().limits == Limits(max_tokens=64)
    request = make_request((5,), id="beef", stop=("x",), limits=Limits(max_tokens=2))
    assert (request.prompt_ids, request.id, request.stop) == ((5,), "beef", ("x",))
    assert request.limits.max_tokens == 2


def test_an_unknown_field_is_an_error() -> None:
    with pytest.raises(TypeError, match="stopp"):
        make_request(stopp=("x",))


def test_a_scope_is_that_of_a_new_request_and_needs_no_event_loop() -> None:
    with make_scope(make_request((1, 2))) as scope:
        assert scope.usage == PromptUsage(2)
        assert scope.lifecycle.state is State.QUEUED
        assert scope.lease.released is None


def test_what_a_stage_puts_into_the_mailbox_is_kept() -> None:
    with make_scope() as scope:
        assert scope.mailbox.put(TokenBatch((1,)), Finished("stop"))
        assert vars(scope.mailbox)["items"] == [TokenBatch((1,)), Finished("stop")]


def test_leaving_gives_back_what_a_stage_holds_though_it_raised() -> None:
    given_back: list[str] = []

    def fail() -> None:
        with make_scope() as scope:
            scope.lease.hold("slot", given_back.append)
            raise ValueError("the stage failed")

    with pytest.raises(ValueError, match="the stage failed"):
        fail()
    assert given_back == ["test over"]
