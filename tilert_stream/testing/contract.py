"""The contract of a stage, as a check that any plugin can call from its own tests."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Any, Final, cast

import anyio

from tilert_stream.channels import StageRunner
from tilert_stream.errors import EngineFault
from tilert_stream.events import Finished, TextDelta, TokenBatch
from tilert_stream.fusion import fuse
from tilert_stream.link import Kind, make_link
from tilert_stream.mailbox import Mailbox

from .last_word import watch_last_word
from .scopes import make_request, make_scope

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence
    from types import FrameType

    from tilert_stream.events import GenerateRequest
    from tilert_stream.link import Link

__all__ = ("assert_contract",)

_PIECES: Final = ("Hel", "lo", " wör", "ld", "", " — 你", "好", ".")
_TEXT: Final = tuple(TextDelta(piece, (n,), (len(piece),)) for n, piece in enumerate(_PIECES))
_TOKENS: Final = tuple(TokenBatch((n,)) for n in (72, 101, 108, 108, 111, 32, 119, 33))


@dataclass(frozen=True)
class _Text:
    text: str
    ids: list[int]


@dataclass(frozen=True)
class _Result:
    """What came out, in a form that does not depend on how it was cut."""

    joined: object
    outcome: Finished | None


def assert_contract(
    stage: object,
    *,
    inputs: Sequence[object] | None = None,
    request: GenerateRequest | None = None,
    join: Callable[[list[Any]], object] | None = None,
) -> None:
    """Check a transform or an awaiting stage against ``tilert_stream.abc``.

    * what it holds back comes out at the end: no token is lost, and each has its place in the text;
    * nothing comes after ``Finished``;
    * the joined output does not depend on how the input was cut into items;
    * a failed request stays failed;
    * two requests at once do not see each other;
    * neither sleeping nor network or process calls on the event loop.

    :param stage: as ``Pipeline.then`` takes it.
    :param inputs: the smallest items that can be merged; by default text or tokens, by what the
        stage's annotations say it takes.
    :param request: the request that the stage is made for.
    :param join: output items → what must be equal; by default their text, ids or bytes.
    :raises AssertionError: naming the rule that is broken.
    :raises TypeError: ``stage`` is a step or a source, or its input type is not known.
    """
    link = make_link(stage)
    if link.kind in (Kind.STEP, Kind.SOURCE):
        raise TypeError(
            f"{link.name} is a {link.kind.value}; transforms and stages are checked here"
        )
    request = make_request() if request is None else request
    items = _default_inputs(link) if inputs is None else list(inputs)
    run = _Runner(link, request, join or _join).run

    success = Finished("length")
    whole = run(items, success)  # the first run also pays for lazy imports
    with _blocking_calls() as blocking:
        again = run(items, success)
    assert not blocking, f"{link.name}: {blocking[0]} on the event loop; make it a Stage and await"
    assert again == whole, (
        f"{link.name}: the same input gave another output: a state is shared between requests"
    )
    for cut in _cuts(items):
        got = run(cut, success)
        assert got == whole, (
            f"{link.name}: the output depends on how the input is cut into items:"
            f" {cut} gave {got}, item by item it was {whole}"
        )
    failed = run(items, Finished.failed(EngineFault("a fault")))
    if whole.outcome == success:
        assert getattr(failed.outcome, "reason", None) == "error", (
            f"{link.name}: a failed request came out as {failed.outcome}"
        )
    for stop in range(len(items)):
        _assert_interleaved(link, request, run, items, stop)
    if join is None and whole.outcome == success:
        _assert_no_token_is_lost(link, items, whole.joined)


def _assert_no_token_is_lost(link: Link, items: Sequence[object], joined: object) -> None:
    given = [i for item in items if isinstance(item, TextDelta | TokenBatch) for i in item.ids]
    kept = joined.ids if isinstance(joined, _Text) else None
    assert kept is None or kept == given, (
        f"{link.name}: of the tokens {given} only {kept} came out; a delta travels with its tokens,"
        " and what is held back comes out in finish"
    )


def _assert_interleaved(
    link: Link,
    request: GenerateRequest,
    run: Callable[[Sequence[object], Finished], _Result],
    items: Sequence[object],
    stop: int,
) -> None:
    """A request that is given up after ``stop`` items leaves nothing for the next one."""
    whole = run(items, Finished("length"))
    with make_scope(request) as scope:
        made = link.make(scope)
        if link.kind is Kind.TRANSFORM and hasattr(made, "feed"):
            for item in items[:stop]:
                if any(isinstance(out, Finished) for out in cast("Any", made).feed(item)):
                    break
    assert run(items, Finished("length")) == whole, (
        f"{link.name}: a request that was given up after {stop} items changed the next one's output"
    )


class _Runner:
    def __init__(
        self, link: Link, request: GenerateRequest, join: Callable[[list[Any]], object]
    ) -> None:
        self._late: list[object] = []
        self._link = watch_last_word(link, self._late)
        self._request = request
        self._join = join

    def run(self, items: Sequence[object], end: Finished) -> _Result:
        with make_scope(self._request) as scope:
            chain, segments = fuse([self._link], scope)
            if segments:
                backends = ["asyncio", *(["trio"] if find_spec("trio") else [])]
                results = [anyio.run(self._run_stage, items, end, backend=b) for b in backends]
                assert results[0] == results[-1], (
                    f"{self._link.name}: asyncio gave {results[0]}, trio {results[-1]}"
                )
                return results[0]
            out: list[object] = chain.run([*items, end])
            self._assert_last_word()
            return _Result(self._join(out), chain.outcome)

    async def _run_stage(self, items: Sequence[object], end: Finished) -> _Result:
        with make_scope(self._request) as scope:
            head, segments = fuse([self._link], scope)
            mailbox: Mailbox[Any] = Mailbox()
            runner: StageRunner[object] = StageRunner(mailbox, head, segments)
            out: list[object] = []
            outcome: Finished | None = None

            async def produce() -> None:
                mailbox.put(*items, end)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(runner.run, produce)
                while outcome is None:
                    more, outcome = await runner.receive()
                    out += more
                tasks.cancel_scope.cancel()
            runner.close()
            self._assert_last_word()
            return _Result(self._join(out), outcome)

    def _assert_last_word(self) -> None:
        assert not self._late, f"{self._link.name}: something came after Finished: {self._late[0]}"


def _default_inputs(link: Link) -> list[object]:
    if link.takes == "TextDelta":
        return list(_TEXT)
    if link.takes == "TokenBatch":
        return list(_TOKENS)
    raise TypeError(
        f"{link.name} takes {link.takes}: give inputs=[...] for it, or annotate feed or run"
    )


def _cuts(items: Sequence[object]) -> Iterator[list[object]]:
    """Every way to merge neighbours, where the items are of a kind that can be merged."""
    if not all(isinstance(item, TextDelta | TokenBatch | str | bytes) for item in items):
        return
    borders = range(1, len(items))
    for count in range(len(items)):
        for chosen in combinations(borders, count):
            edges = [0, *chosen, len(items)]
            yield [_merge(items[start:stop]) for start, stop in pairwise(edges)]


def _merge(items: Sequence[Any]) -> object:
    first = items[0]
    if isinstance(first, TokenBatch):
        return TokenBatch(
            tuple(token for batch in items for token in batch.ids),
            ends_with_stop=items[-1].ends_with_stop,
        )
    if isinstance(first, TextDelta):
        ids: list[int] = []
        ends: list[int] = []
        text = ""
        for delta in items:
            ids += delta.ids
            ends += [len(text) + end for end in delta.ends]
            text += delta.text
        return TextDelta(text, tuple(ids), tuple(ends))
    return type(first)().join(items)


def _assert_attributed(delta: TextDelta) -> None:
    edges = [0, *delta.ends, len(delta.text)]
    assert len(delta.ends) == len(delta.ids), f"{delta}: one end for each of its ids"
    assert edges == sorted(edges), f"{delta}: its ends rise, and lie within its text"


def _join(items: list[Any]) -> object:
    if items and all(isinstance(item, TextDelta) for item in items):
        for delta in items:
            _assert_attributed(delta)
        return _Text("".join(d.text for d in items), [i for d in items for i in d.ids])
    if all(isinstance(item, TokenBatch) for item in items):
        return [token for item in items for token in item.ids]
    if all(isinstance(item, bytes) for item in items):
        return b"".join(items)
    if all(isinstance(item, str) for item in items):
        return "".join(items)
    return items


_BLOCKING: Final = frozenset(
    {"socket.connect", "socket.getaddrinfo", "subprocess.Popen", "os.system"}
)
_watchers: list[list[str]] = []


def _audit(event: str, _arguments: tuple[object, ...]) -> None:
    if _watchers and event in _BLOCKING:
        _watchers[-1].append(event)


@cache
def _install_audit_hook() -> None:
    """Once a process: a hook cannot be removed. It is idle while nobody watches."""
    sys.addaudithook(_audit)


def _profile(_frame: FrameType, event: str, function: object) -> None:
    # Before Python 3.13 sleeping raises no audit event. The function is told by its names, for a
    # test may have put another in its place, which calls it in the end.
    if event == "c_call" and _watchers and getattr(function, "__name__", "") == "sleep":
        _watchers[-1] += ["time.sleep"] if getattr(function, "__module__", "") == "time" else []


@contextmanager
def _blocking_calls() -> Generator[list[str]]:
    """The names of the blocking calls made in the block."""
    _install_audit_hook()
    _watchers.append([])
    before = sys.getprofile()
    sys.setprofile(_profile)
    try:
        yield _watchers[-1]
    finally:
        sys.setprofile(before)
        _watchers.pop()
