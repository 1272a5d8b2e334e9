"""Stages that cannot be made: the answer names the stage, and nothing stays held."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from tilert_stream.abc import Receive, Send, Transform
from tilert_stream.events import TextDelta
from tilert_stream.scope import RequestScope
from tilert_stream.testing.apps import ScriptedApp

Request = Callable[..., Any]

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "abc"}], "max_tokens": 5}


def broken_stage(_scope: RequestScope) -> Transform[TextDelta, TextDelta]:
    raise RuntimeError("no licence key in /etc/secret")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_factory_that_raises(
    request_to: Request, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    app = ScriptedApp()
    app.service.pipeline = app.service.pipeline.insert(
        broken_stage, where="after", anchor="detokenize"
    )
    with caplog.at_level(logging.ERROR):
        async with app.lifespan():
            answer = await request_to(app, body=CHAT | {"stream": stream}).run()
    assert answer.status == 500
    assert answer.json["error"]["code"] == "stage_failed"
    assert "broken_stage" in answer.json["error"]["message"]
    assert "secret" not in answer.json["error"]["message"]
    assert "no licence key" in caplog.text
    assert app.service.ledger.counts == {}


class FailsAtOnce:
    async def run(self, receive: Receive[TextDelta], send: Send[TextDelta]) -> None:
        async for _ in receive:
            raise RuntimeError("the moderation service is down")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stage_that_awaits_and_fails_before_the_first_text_is_a_status(
    request_to: Request, stream: bool
) -> None:
    app = ScriptedApp()
    app.service.pipeline = app.service.pipeline.insert(
        FailsAtOnce(), where="after", anchor="detokenize"
    )
    async with app.lifespan():
        answer = await request_to(app, body=CHAT | {"stream": stream}).run()
        assert app.service.ledger.counts == {}
    assert answer.status == 500
    assert answer.json["error"]["code"] == "stage_failed"
