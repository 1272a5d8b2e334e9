"""Fused transforms behave as if each ran alone on what the one before it gave."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from tilert_stream.errors import Busy, StageError
from tilert_stream.events import Finished
from tilert_stream.fusion import Chain, fuse, stage_error
from tilert_stream.link import make_link
from tilert_stream.scope import RequestScope
from tilert_stream.testing import make_scope

END = Finished("length")


class Group:
    """Gives its items on in groups of ``size``; the rest at the end. May end the stream itself."""

    def __init__(self, size: int, last: int | None, log: list[str], name: str) -> None:
        self.size, self.last, self.log, self.name = size, last, log, name
        self.held: list[object] = []
        self.fed = 0

    def feed(self, item: object) -> Iterable[object]:
        self.log.append(f"{self.name} feed")
        self.held.append(item)
        self.fed += 1
        if len(self.held) == self.size:
            yield from self.held
            self.held = []
        if self.fed == self.last:
            yield Finished("stop", stop_reason=self.name)
            yield "after the end"

    def finish(self, _outcome: Finished) -> Iterable[object]:
        self.log.append(f"{self.name} finish")
        yield from self.held


def alone(transform: Group, items: list[object], end: Finished) -> tuple[list[object], Finished]:
    """What one transform makes of a whole stream."""
    out: list[object] = []
    for item in items:
        for made in transform.feed(item):
            if isinstance(made, Finished):
                return out, made
            out.append(made)
    for made in transform.finish(end):
        if isinstance(made, Finished):
            return out, made
        out.append(made)
    return out, end


SHAPES = st.lists(
    st.tuples(st.integers(1, 4), st.none() | st.integers(1, 12)), min_size=0, max_size=4
)


@given(SHAPES, st.integers(0, 15), st.lists(st.integers(1, 5), max_size=8))
def test_fused_is_the_same_as_one_after_another(
    shapes: list[tuple[int, int | None]], count: int, cuts: list[int]
) -> None:
    items: list[object] = list(range(count))
    expected, end = items, END
    for index, (size, last) in enumerate(shapes):
        expected, end = alone(Group(size, last, [], str(index)), expected, end)

    log: list[str] = []
    chain: Chain[object, object] = Chain(
        [(str(n), Group(size, last, log, str(n))) for n, (size, last) in enumerate(shapes)]
    )
    out: list[object] = []
    stream: list[object] = [*items, END, "never read", END]
    for cut in cuts:
        out += chain.run(stream[:cut])
        del stream[:cut]
    out += chain.run(stream)
    assert out == expected
    assert chain.outcome == end
    for index in range(len(shapes)):
        assert log.count(f"{index} finish") <= 1
    before = len(log)
    assert chain.run(["late", END]) == []
    assert len(log) == before, "nothing is called after the end"


def test_an_empty_chain_passes_everything_on() -> None:
    chain: Chain[int, int] = Chain()
    assert chain.run([1, 2]) == [1, 2]
    assert chain.outcome is None
    assert chain.run([3, END, 4]) == [3]
    assert chain.outcome is END


class Awaiting:
    async def run(self, receive: object, send: object) -> None: ...


class Pass:
    def __init__(self, _scope: RequestScope) -> None: ...

    def feed(self, item: object) -> Iterable[object]:
        yield item

    def finish(self, _outcome: Finished) -> Iterable[object]:
        return ()


def test_a_stage_that_awaits_parts_the_chain() -> None:
    links = [
        make_link(stage, name)
        for stage, name in [
            (Pass, "a"),
            (Pass, "b"),
            (Awaiting(), "c"),
            (Pass, "d"),
            (Awaiting(), "e"),
        ]
    ]
    with make_scope() as scope:
        head, segments = fuse(links, scope)
    assert head.run([1]) == [1]
    assert [segment.name for segment in segments] == ["c", "e"]
    assert len({id(chain) for chain in (head, *(s.chain for s in segments))}) == 3


def test_what_a_client_may_know_of_an_exception() -> None:
    typed = Busy("later")
    assert stage_error("shout", typed) is typed
    cause = ValueError("a secret path")
    error = stage_error("shout", cause)
    assert isinstance(error, StageError)
    assert error.__cause__ is cause
    assert error.message == "stage 'shout' failed"
