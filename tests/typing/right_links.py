"""Links that fit: both type checkers know what comes out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, assert_type

from tilert_stream.abc import DecodeNode, PrefillNode, Receive, Send
from tilert_stream.events import (
    Finished,
    GenerateRequest,
    KVReady,
    Prefilled,
    Reserved,
    TextDelta,
    TokenBatch,
)
from tilert_stream.pipeline import Pipeline
from tilert_stream.scope import RequestScope
from tilert_stream.service import Service
from tilert_stream.stages.decode import Decode
from tilert_stream.stages.detokenize import Detokenize
from tilert_stream.stages.kv_import import ImportKV
from tilert_stream.stages.prefill import Prefill
from tilert_stream.stages.reserve import Reserve
from tilert_stream.stages.stop import StopStrings

if TYPE_CHECKING:
    from tilert_stream.model.tokenizer import TextTokenizer


class Shout:
    def __init__(self, _scope: RequestScope) -> None: ...

    def feed(self, item: TextDelta) -> Iterable[TextDelta]:
        yield item

    def finish(self, _outcome: Finished) -> Iterable[TextDelta]:
        return ()


class Encode:
    def __init__(self, _scope: RequestScope) -> None: ...

    def feed(self, item: TextDelta) -> Iterable[bytes | Finished]:
        yield item.text.encode()

    def finish(self, _outcome: Finished) -> Iterable[bytes | Finished]:
        return ()


class Moderate:
    async def run(self, receive: Receive[TextDelta], send: Send[TextDelta]) -> None:
        async for item in receive:
            await send(item)


def make_shout(scope: RequestScope) -> Shout:
    return Shout(scope)


def check(decode: DecodeNode, prefill: PrefillNode, tokenizer: TextTokenizer) -> None:
    start = Pipeline()
    assert_type(start, Pipeline[GenerateRequest])
    reserved = start.then(Reserve(decode))
    assert_type(reserved, Pipeline[Reserved])
    prefilled = reserved.then(Prefill(prefill))
    assert_type(prefilled, Pipeline[Prefilled])
    ready = prefilled.then(ImportKV(decode))
    assert_type(ready, Pipeline[KVReady])
    tokens = ready.then(Decode(decode))
    assert_type(tokens, Pipeline[TokenBatch])
    text = tokens.then(Detokenize(tokenizer)).then(StopStrings())
    assert_type(text, Pipeline[TextDelta])
    assert_type(text.then(Shout), Pipeline[TextDelta])
    assert_type(text.then(make_shout), Pipeline[TextDelta])
    assert_type(text.then(make_shout, name="loud"), Pipeline[TextDelta])
    assert_type(text.then(Moderate()), Pipeline[TextDelta])
    assert_type(text.then(Shout).then(Moderate()).then(Encode), Pipeline[bytes])
    assert_type(text.then("stop_strings"), Pipeline[Any])
    assert_type(Service(text), Service[TextDelta])


async def read(service: Service[TextDelta], request: GenerateRequest) -> None:
    async for delta in service.stream(request):
        assert_type(delta, TextDelta)
    async with service.open(request, Encode) as stream:
        async for parts in stream:
            assert_type(parts, list[bytes])
