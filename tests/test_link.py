"""What a stage is, found out from its shape and its annotations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pytest

from tilert_stream.abc import Receive, Send, Stage, Transform
from tilert_stream.events import Finished, GenerateRequest, Reserved, TextDelta, TokenBatch
from tilert_stream.link import Kind, make_link
from tilert_stream.scope import RequestScope
from tilert_stream.testing import make_scope


class Step:
    async def call(self, item: GenerateRequest, scope: RequestScope) -> Reserved | Finished:
        return Finished("stop")


class Source:
    async def produce(self, item: Reserved, scope: RequestScope) -> TokenBatch | None:
        return None


class HTTPWord:
    def __init__(self, _scope: RequestScope) -> None: ...

    def feed(self, item: TokenBatch) -> Iterator[TextDelta | bytes | Finished]:
        yield TextDelta("")

    def finish(self, _outcome: Finished) -> Iterable[TextDelta | bytes]:
        return ()


class Awaiting:
    async def run(self, receive: Receive[TextDelta], send: Send[bytes]) -> None:
        async for item in receive:
            await send(item.text.encode())


class Named:
    stage_name = "given"

    def feed(self, item, /):  # type: ignore[no-untyped-def] # pyright: ignore
        return ()

    def finish(self, outcome, /):  # type: ignore[no-untyped-def] # pyright: ignore
        return ()


def by_contract(scope: RequestScope) -> Transform[TokenBatch, TextDelta]:
    return HTTPWord(scope)  # type: ignore[return-value] # only its annotation is read  # pyright: ignore[reportReturnType]


def by_class(scope: RequestScope) -> HTTPWord:
    return HTTPWord(scope)


def makes_stage(_scope: RequestScope) -> Stage[TextDelta, bytes]:
    return Awaiting()


class Factory:
    """An object that makes one per request."""

    def __call__(self, scope: RequestScope) -> HTTPWord:
        return HTTPWord(scope)


def says_nothing(scope: RequestScope):  # type: ignore[no-untyped-def]
    return HTTPWord(scope)


@pytest.mark.parametrize(
    ("stage", "name", "kind", "takes", "gives"),
    [
        (Step(), "step", Kind.STEP, "GenerateRequest", "Reserved"),
        (Step, "step", Kind.STEP, "GenerateRequest", "Reserved"),
        (Source(), "source", Kind.SOURCE, "Reserved", "TokenBatch"),
        (HTTPWord, "http_word", Kind.TRANSFORM, "TokenBatch", "TextDelta | bytes"),
        (Awaiting(), "awaiting", Kind.STAGE, "TextDelta", "bytes"),
        (by_contract, "by_contract", Kind.TRANSFORM, "TokenBatch", "TextDelta"),
        (by_class, "by_class", Kind.TRANSFORM, "TokenBatch", "TextDelta | bytes"),
        (makes_stage, "makes_stage", Kind.STAGE, "TextDelta", "bytes"),
        (Factory(), "factory", Kind.TRANSFORM, "TokenBatch", "TextDelta | bytes"),
        (says_nothing, "says_nothing", Kind.TRANSFORM, "?", "?"),
        (Named(), "given", Kind.TRANSFORM, "?", "?"),
        ("stop_strings", "stop_strings", Kind.TRANSFORM, "TextDelta", "TextDelta"),
    ],
)
def test_a_stage_says_what_it_is(
    stage: object, name: str, kind: Kind, takes: str, gives: str
) -> None:
    link = make_link(stage)
    assert (link.name, link.kind, link.takes, link.gives) == (name, kind, takes, gives)
    assert make_link(stage, "mine").name == "mine"


@pytest.mark.parametrize("factory", [HTTPWord, by_class, Factory()])
def test_a_factory_makes_one_per_request(
    factory: Callable[[RequestScope], HTTPWord],
) -> None:
    link = make_link(factory)
    with make_scope() as scope:
        first, second = link.make(scope), link.make(scope)
    assert isinstance(first, HTTPWord)
    assert isinstance(second, HTTPWord)
    assert first is not second


def test_an_object_is_the_same_for_all() -> None:
    stage = Awaiting()
    with make_scope() as scope:
        assert make_link(stage).make(scope) is stage
