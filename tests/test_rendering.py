"""A pipeline prints who runs where, and what travels between."""

from __future__ import annotations

from collections.abc import Iterable

from tilert_engine.scripted import Script, ScriptedDecode, ScriptedPrefill
from tilert_stream.abc import Receive, Send
from tilert_stream.events import (
    Finished,
    GenerateRequest,
    KVReady,
    Prefilled,
    Reserved,
    TextDelta,
)
from tilert_stream.model.byte_tokenizer import byte_tokenizer
from tilert_stream.nodes.local import local_service
from tilert_stream.pipeline import Pipeline
from tilert_stream.scope import RequestScope
from tilert_stream.stages.decode import Decode
from tilert_stream.stages.reserve import Reserve


class Shout:
    def __init__(self, _scope: RequestScope) -> None: ...

    def feed(self, item: TextDelta) -> Iterable[TextDelta]:
        yield item

    def finish(self, _outcome: Finished) -> Iterable[TextDelta]:
        return ()


class Moderate:
    async def run(self, receive: Receive[TextDelta], send: Send[TextDelta]) -> None:
        async for item in receive:
            await send(item)


class Log:
    async def call(self, item: GenerateRequest, scope: RequestScope) -> GenerateRequest:
        return item


def whole() -> Pipeline[TextDelta]:
    script = Script()
    return local_service(ScriptedPrefill(script), ScriptedDecode(script), byte_tokenizer()).pipeline


FUSED = """\
producer task
  reserve       GenerateRequest → Reserved
  prefill       Reserved → Prefilled
  import_kv     Prefilled → KVReady
  decode        KVReady → TokenBatch
══ mailbox
writer task, fused
  detokenize    TokenBatch → TextDelta
  stop_strings  TextDelta → TextDelta"""


def test_a_pipeline_without_a_stage_that_awaits() -> None:
    assert str(whole()) == FUSED


AWAITING = """\
producer task
  reserve       GenerateRequest → Reserved
  prefill       Reserved → Prefilled
  import_kv     Prefilled → KVReady
  decode        KVReady → TokenBatch
══ mailbox
pump task, fused
  detokenize    TokenBatch → TextDelta
══ channel
task of moderate
  moderate      TextDelta → TextDelta
  stop_strings  TextDelta → TextDelta
══ channel
task of again
  again         TextDelta → TextDelta
  shout         TextDelta → TextDelta"""


def test_a_stage_that_awaits_is_a_boundary() -> None:
    pipeline = whole().insert(Moderate(), where="before", anchor="stop_strings")
    assert str(pipeline.then(Moderate(), name="again").then(Shout)) == AWAITING


def test_steps_alone_and_nothing_at_all() -> None:
    assert str(Pipeline().then(Log())) == "producer task\n  log  GenerateRequest → GenerateRequest"
    assert str(Pipeline()) == "(an empty pipeline)"


class Away:
    """A decode node elsewhere, as far as print is concerned."""

    where = "decode 10.0.0.2:5557, 10.0.0.3:5557"

    async def reserve(self, request: GenerateRequest, scope: RequestScope) -> Reserved:
        raise NotImplementedError

    async def import_kv(self, prefilled: Prefilled, scope: RequestScope) -> KVReady:
        raise NotImplementedError

    async def decode(self, ready: KVReady, scope: RequestScope) -> None:
        raise NotImplementedError


def test_what_another_process_does_has_an_arrow() -> None:
    pipeline = Pipeline().then(Reserve(Away())).then(Forget()).then(Decode(Away()))
    assert (
        str(pipeline)
        == """\
producer task
  reserve  GenerateRequest → Reserved  ⇢ decode 10.0.0.2:5557, 10.0.0.3:5557
  forget   Reserved → KVReady
  decode   KVReady → TokenBatch  ⇢ decode 10.0.0.2:5557, 10.0.0.3:5557"""
    )


class Forget:
    async def call(self, item: Reserved, scope: RequestScope) -> KVReady:
        return KVReady(None)
