"""Links that fit, with the type that each pipeline has then; mypy and pyright read this file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, assert_type

from tilert_stream.events import (
    Finished,
    GenerateRequest,
    Reserved,
    TextDelta,
    TokenBatch,
)
from tilert_stream.pipeline import Pipeline

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tilert_stream.abc import Receive, Send, Stage, Transform
    from tilert_stream.scope import RequestScope


class Reserve:
    async def call(self, item: GenerateRequest, scope: RequestScope) -> Reserved | Finished:
        raise NotImplementedError


class Decode:
    async def produce(self, item: Reserved, scope: RequestScope) -> TokenBatch | None:
        raise NotImplementedError


class Detokenize:
    def __init__(self, scope: RequestScope) -> None: ...

    def feed(self, item: TokenBatch) -> Iterator[TextDelta | Finished]:
        raise NotImplementedError

    def finish(self, outcome: Finished) -> Iterable[TextDelta]:
        raise NotImplementedError


class Encode:
    def feed(self, item: TextDelta) -> list[bytes]:
        raise NotImplementedError

    def finish(self, outcome: Finished) -> tuple[bytes, ...]:
        raise NotImplementedError


class Moderate:
    async def run(self, receive: Receive[TextDelta], send: Send[TextDelta]) -> None:
        raise NotImplementedError


class ModerateByScope(Moderate):
    def __init__(self, scope: RequestScope) -> None: ...


class StopStrings:
    def __call__(self, scope: RequestScope) -> Transform[TextDelta, TextDelta]:
        raise NotImplementedError


def make_encoder(scope: RequestScope) -> Transform[TextDelta, bytes]:
    raise NotImplementedError


def make_moderation(scope: RequestScope) -> Stage[TextDelta, str]:
    raise NotImplementedError


def takes_wider(pipeline: Pipeline[TextDelta | bytes]) -> None:
    """What a pipeline yields is covariant."""


tokens = Pipeline().then(Reserve()).then(Decode())
text = tokens.then(Detokenize)


def check() -> None:
    """Never called: what matters is what a type checker says of it."""
    assert_type(Pipeline(), Pipeline[GenerateRequest])
    assert_type(Pipeline().then(Reserve()), Pipeline[Reserved])
    assert_type(tokens, Pipeline[TokenBatch])
    assert_type(text, Pipeline[TextDelta])
    assert_type(text.then(StopStrings()), Pipeline[TextDelta])
    assert_type(text.then(Encode()), Pipeline[bytes])
    assert_type(text.then(make_encoder, name="encoder"), Pipeline[bytes])
    assert_type(text.then(lambda _scope: Encode()), Pipeline[bytes])
    assert_type(text.then(Moderate()), Pipeline[TextDelta])
    assert_type(text.then(ModerateByScope), Pipeline[TextDelta])
    assert_type(text.then(make_moderation), Pipeline[str])
    assert_type(text.then("stop_strings"), Pipeline[Any])
    assert_type(text.then("stop_strings").then(Encode()), Pipeline[bytes])
    takes_wider(text)


async def read(request: GenerateRequest) -> None:
    async with text.open(request) as stream:
        async for items in stream:
            assert_type(items, list[TextDelta])
