"""An end behind the last byte, or an answer without a byte: complete, not cut."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from tilert_engine.scripted import Script
from tilert_stream.abc import Receive, Send
from tilert_stream.asgi.response import StreamResponse
from tilert_stream.events import Finished, GenerateRequest, Limits, TextDelta
from tilert_stream.model.byte_tokenizer import EOS
from tilert_stream.scope import RequestScope
from tilert_stream.testing.apps import ScriptedApp

Request = Callable[..., Any]

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "abc"}], "max_tokens": 5}


class EncodeText:
    """Has nothing to say at the end, nor for a token without text."""

    def __init__(self, _scope: RequestScope) -> None:
        pass

    def feed(self, item: TextDelta) -> Iterable[bytes]:
        if item.text:
            yield item.text.encode()

    def finish(self, _outcome: Finished) -> Iterable[bytes]:
        return ()


class PassOn:
    def __init__(self, _scope: RequestScope) -> None:
        pass

    async def run(self, receive: Receive[TextDelta], send: Send[TextDelta]) -> None:
        async for delta in receive:
            await send(delta)


def ends_after(count: int) -> Script:
    def token(prompt_ids: Sequence[int], index: int) -> int:
        return prompt_ids[index] if index < count else EOS

    return Script(token=token)


@pytest.mark.parametrize("text", [b"", b"a", b"abc"])
async def test_an_encoder_that_is_silent_at_the_end(request_to: Request, text: bytes) -> None:
    app = ScriptedApp(ends_after(len(text)))
    limits = Limits(9, eos_ids=frozenset({EOS}))
    generate = GenerateRequest(id="0", prompt_ids=tuple(b"abc"), limits=limits)
    async with app.lifespan():
        answer = await request_to(
            StreamResponse(app.service.open(generate, EncodeText), content=())
        ).run()
    assert (answer.status, answer.content) == (200, text)
    assert answer.complete
    assert app.service.ledger.counts == {}


@pytest.mark.parametrize("stream", [False, True])
async def test_the_end_of_a_stage_that_awaits(request_to: Request, stream: bool) -> None:
    app = ScriptedApp()
    app.service.pipeline = app.service.pipeline.insert(PassOn, where="after", anchor="detokenize")
    async with app.lifespan():
        answer = await request_to(app, body=CHAT | {"stream": stream}).run()
    text = answer.text if stream else answer.json["choices"][0]["message"]["content"]
    assert text == "abcab"
    assert answer.complete
